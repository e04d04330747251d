// The rail between processes of one host: two rails in one process.
#include "transport/host_rail.h"

#include <doctest/doctest.h>

#include <random>
#include <thread>

#include "tests/unit/transport/host_fixture.h"
#include "transport/host_identity.h"
#include "transport/providers.h"

namespace leeway::transport::testing {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST_SUITE_BEGIN("host_rail");

TEST_CASE("host identity: the same for everybody here, and nothing equals an unknown one") {
  CHECK(host_identity() != 0);
  CHECK(same_host(host_identity(), host_identity()));
  CHECK(!same_host(1, 2));
  CHECK(!same_host(0, 0));
}

TEST_CASE("host rail: says what it is") {
  const HostNode node;
  const RailInfo& info = node.rail->info();
  CHECK(info.traits->family == "shm");
  CHECK(info.traits->waiting == Waiting::kDescriptor);
  CHECK(info.max_message == 8192);
  CHECK(info.printable.starts_with("shm://leeway-"));
  CHECK(HostNode().rail->info().address != info.address);
}

TEST_CASE("host rail: messages of every size arrive in order, each ticket once") {
  HostNode a, b;
  const RailPeer to_b = a.connect(b);
  const unsigned seed = 20261201;
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::vector<std::string> sent = {"", "x", std::string(7, 'y'), std::string(8192, 'z')};
  for (int i = 0; i < 2000; ++i) {
    std::string text(random() % 8193, '\0');
    fill(std::as_writable_bytes(std::span(text)), random());
    sent.push_back(std::move(text));
  }
  std::size_t taken = 0;
  CHECK(until(
      [&] {
        while (taken < sent.size()) {
          const auto posted =
              a.rail->send(to_b, std::as_bytes(std::span(sent[taken])), a.new_ticket());
          REQUIRE(posted);
          if (*posted == Rail::Post::kTryAgain) break;
          ++taken;
        }
        return b.messages.size() == sent.size() && a.done_count() == sent.size();
      },
      a, b));
  CHECK(b.messages == sent);
  CHECK(a.each_at_most_once());
}

TEST_CASE("host rail: a message that is too long, and addresses that are none") {
  HostNode a, b;
  const RailPeer to_b = a.connect(b);
  const std::string text(8193, 'x');
  const auto posted = a.rail->send(to_b, std::as_bytes(std::span(text)), a.new_ticket());
  REQUIRE(!posted);
  CHECK(posted.error().code == Code::kInvalidArgument);
  for (const std::string_view wrong :
       {"", "leeway-", "leeway-00000000000000zz", "elsewhere00000000000000",
        "leeway-0000000000000000000000000000000000000000000000000000000000000000000000000000"}) {
    CAPTURE(wrong);
    const auto peer = a.rail->connect(std::as_bytes(std::span(wrong)));
    REQUIRE(!peer);
    CHECK(peer.error().code == Code::kInvalidArgument);
  }
  CHECK(!a.rail->send(RailPeer(999), {}, a.new_ticket()));
}

TEST_CASE("host rail: a full ring says so, and who made room wakes the sender") {
  HostNode a, b;
  const RailPeer to_b = a.connect(b);
  const std::string text(8192, 'x');
  std::size_t taken = 0;
  while (*a.rail->send(to_b, std::as_bytes(std::span(text)), a.new_ticket()) == Rail::Post::kTaken)
    ++taken;
  CHECK(taken == 31);  // 256 KiB of 8,200 bytes each
  settle(a);
  CHECK(!readable(a, milliseconds(20)));
  CHECK(until([&] { return b.messages.size() == taken; }, b));
  CHECK(readable(a));
  a.rail->disarm();
  CHECK(a.poll());
  a.send(to_b, text);
}

TEST_CASE("host rail: who sleeps is woken by the first message") {
  HostNode a, b;
  const RailPeer to_b = a.connect(b);
  a.send(to_b, "hello");
  REQUIRE(until([&] { return b.messages.size() == 1; }, a, b));
  settle(b);
  CHECK(!readable(b, milliseconds(20)));
  a.send(to_b, "wake up");
  CHECK(readable(b));
  b.rail->disarm();
  CHECK(b.poll());
  CHECK(b.messages.size() == 2);
  // And nothing is left that would keep it awake.
  settle(b);
  CHECK(!readable(b, milliseconds(20)));
  // What came before arm() is seen by it.
  b.rail->disarm();
  a.send(to_b, "already there");
  CHECK(!b.rail->arm());
  REQUIRE(until([&] { return b.messages.size() == 3; }, b));
  CHECK(b.rail->arm());
}

TEST_CASE("host rail: what is under way keeps its own rail awake") {
  HostNode a, b;
  const HostShared memory(b, 4 * kMiB);
  std::vector<std::byte> here(4 * kMiB);
  const RailPeer to_b = a.connect(b);
  a.read(to_b, std::span(here).first(1), memory.window());
  REQUIRE(until([&] { return a.done_count() == 1; }, a, b));
  CHECK(a.rail->arm());
  a.rail->disarm();
  a.read(to_b, here, memory.window());
  CHECK(!a.rail->arm());
  a.send(to_b, "x");
  CHECK(!a.rail->arm());
  REQUIRE(until([&] { return a.done_count() == 3; }, a, b));
  CHECK(a.rail->arm());
}

TEST_CASE("host rail: a newcomer and a question for a memory wake whom they need") {
  HostNode a, b;
  const HostShared memory(b, 100);
  settle(b);
  CHECK(!readable(b, milliseconds(20)));
  const RailPeer to_b = a.connect(b);
  CHECK(readable(b));
  settle(b);
  CHECK(!readable(b, milliseconds(20)));
  std::byte here{};
  a.read(to_b, {&here, 1}, memory.window());
  CHECK(readable(b));
  b.rail->disarm();
  settle(a);
  CHECK(!readable(a, milliseconds(20)));
  settle(b);
  CHECK(readable(a));
}

TEST_CASE("host rail: reads and writes of any size and alignment, and not a byte beside them") {
  HostNode a, b;
  constexpr std::size_t kLargest = 3 * kMiB;
  const HostShared memory(b, kLargest + 100);
  std::vector<std::byte> here(kLargest + 100);
  const RailPeer to_b = a.connect(b);
  struct Case {
    std::size_t size, here, there;
  };
  for (const Case& c : std::vector<Case>{{0, 0, 0},
                                         {0, 5, kLargest + 100},
                                         {1, 0, 0},
                                         {1, 3, kLargest + 99},
                                         {13, 7, 1},
                                         {4096, 1, 4095},
                                         {1234567, 3, 99},
                                         {kMiB, 0, 64},
                                         {kLargest, 0, 0},
                                         {kLargest, 1, 100}}) {
    CAPTURE(c.size);
    CAPTURE(c.here);
    CAPTURE(c.there);
    const auto mine = std::span(here).subspan(c.here, c.size);
    const auto theirs = memory.bytes().subspan(c.there, c.size);
    std::ranges::fill(here, std::byte{1});
    fill(theirs, c.size);
    const auto read = a.read(to_b, mine, memory.window(c.there));
    REQUIRE(until([&] { return a.is_done(read); }, a, b));
    CHECK(a.outcome(read));
    CHECK(filled(mine, c.size));
    if (c.here > 0) CHECK(here[c.here - 1] == std::byte{1});
    if (c.here + c.size < here.size()) CHECK(here[c.here + c.size] == std::byte{1});

    std::ranges::fill(memory.bytes(), std::byte{2});
    fill(mine, c.size + 1);
    const auto written = a.write(to_b, mine, memory.window(c.there));
    REQUIRE(until([&] { return a.is_done(written); }, a, b));
    CHECK(a.outcome(written));
    CHECK(filled(theirs, c.size + 1));
    if (c.there > 0) CHECK(memory.bytes()[c.there - 1] == std::byte{2});
    if (c.there + c.size < memory.bytes().size())
      CHECK(memory.bytes()[c.there + c.size] == std::byte{2});
  }
  CHECK(a.each_at_most_once());
}

TEST_CASE("host rail: 64 MiB at once") {
  HostNode a, b;
  const HostShared memory(b, 64 * kMiB);
  std::vector<std::byte> here(64 * kMiB);
  fill(here, 1);
  const RailPeer to_b = a.connect(b);
  const auto written = a.write(to_b, here, memory.window());
  REQUIRE(until([&] { return a.is_done(written); }, a, b));
  CHECK(a.outcome(written));
  CHECK(filled(memory.bytes(), 1));
}

TEST_CASE("host rail: an unknown key and bytes beyond the end cost their own ticket only") {
  HostNode a, b;
  const HostShared memory(b, 5000);
  fill(memory.bytes(), 1);
  std::vector<std::byte> here(6000);
  const RailPeer to_b = a.connect(b);
  const Window window = memory.window();
  const auto good = a.read(to_b, std::span(here).first(5000), window);
  const auto unknown = a.read(to_b, std::span(here).first(1), {0, window.key ^ 1});
  const auto unknown_too = a.write(to_b, std::span(here).first(1), {0, window.key ^ 1});
  const auto long_one = a.read(to_b, std::span(here).first(5001), window);
  const auto late = a.write(to_b, std::span(here).first(2), {4999, window.key});
  const auto wild = a.write(to_b, std::span(here).first(2), {~std::uint64_t{0}, window.key});
  const auto nothing = a.write(to_b, std::span(here).first(0), {5001, window.key});
  REQUIRE(until([&] { return a.done_count() == 7; }, a, b));
  CHECK(a.outcome(good));
  CHECK(filled(std::span(here).first(5000), 1));
  for (const auto bad : {unknown, unknown_too, long_one, late, wild, nothing}) {
    REQUIRE(!a.outcome(bad));
    CHECK(a.outcome(bad).error().code == Code::kInvalidArgument);
  }
  // Known by now: checked at once, no question.
  const auto again = a.read(to_b, std::span(here).first(5001), window);
  REQUIRE(until([&] { return a.is_done(again); }, a));
  CHECK(!a.outcome(again));
  CHECK(filled(memory.bytes(), 1));
}

TEST_CASE("host rail: memory that was retired stays for what is under way, and then goes") {
  HostNode a, b;
  const std::size_t before = shared_mappings();
  const RailPeer to_b = a.connect(b);
  a.send(to_b, "hello");
  REQUIRE(until([&] { return b.messages.size() == 1; }, a, b));
  CHECK(shared_mappings() == before + 2);  // the ring, on both sides
  std::vector<std::byte> here(8 * kMiB);
  auto memory = std::make_unique<HostShared>(b, here.size());
  fill(memory->bytes(), 5);
  const Window window = memory->window();
  const auto read = a.read(to_b, here, window);
  settle(a);
  a.rail->disarm();
  REQUIRE(until([&] { return shared_mappings() == before + 4; }, a, b));
  REQUIRE(!a.is_done(read));
  memory.reset();
  REQUIRE(readable(b));
  REQUIRE(until([&] { return a.is_done(read); }, a, b));
  CHECK(a.outcome(read));
  CHECK(filled(here, 5));
  REQUIRE(until([&] { return shared_mappings() == before + 2; }, a, b));
  const auto late = a.read(to_b, here, window);
  REQUIRE(until([&] { return a.is_done(late); }, a, b));
  REQUIRE(!a.outcome(late));
  CHECK(a.outcome(late).error().code == Code::kInvalidArgument);
}

TEST_CASE("host rail: memories come and go on another thread") {
  HostNode a, b;
  const RailPeer to_b = a.connect(b);
  HostShared stays(b, 10000);
  std::atomic<bool> over{false};
  std::thread other([&] {
    for (int i = 0; i < 300; ++i) const HostShared gone(b, 5000);
    over = true;
  });
  std::vector<std::byte> here(10000);
  fill(stays.bytes(), 3);
  std::size_t count = 0;
  REQUIRE(until(
      [&] {
        if (a.done_count() == count) {
          a.read(to_b, here, stays.window());
          ++count;
        }
        return over && count > 100;
      },
      a, b));
  other.join();
  REQUIRE(until([&] { return a.done_count() == count; }, a, b));
  for (std::size_t i = 0; i < count; ++i) CHECK(a.outcome(i));
}

TEST_CASE("host rail: a long copy holds up no message and no other peer's copy") {
  HostNode a, b, c;
  const HostShared large(b, 8 * kMiB), small(c, 100);
  std::vector<std::byte> here(8 * kMiB);
  const RailPeer to_b = a.connect(b), to_c = a.connect(c);
  const RailPeer from_b = b.connect(a);
  const auto first = a.read(to_b, std::span(here).first(1), large.window());
  const auto second = a.read(to_c, std::span(here).first(1), small.window());
  REQUIRE(until([&] { return a.is_done(first) && a.is_done(second); }, a, b, c));
  const auto whole = a.read(to_b, here, large.window());
  const auto other = a.read(to_c, std::span(here).first(100), small.window());
  b.send(from_b, "meanwhile");
  for (int i = 0; i < 8; ++i) a.poll();
  CHECK(a.messages.size() == 1);
  CHECK(a.is_done(other));
  CHECK(!a.is_done(whole));
  REQUIRE(until([&] { return a.is_done(whole); }, a));
}

TEST_CASE("host rail: what was sent before closing arrives, what comes after is an error") {
  HostNode a;
  auto b = std::make_unique<HostNode>();
  const RailPeer to_b = a.connect(*b), from_b = b->connect(a);
  b->send(from_b, "last words");
  REQUIRE(until([&] { return b->done_count() == 1; }, a, *b));
  auto memory = std::make_unique<HostShared>(*b, 8 * kMiB);
  std::vector<std::byte> here(8 * kMiB);
  const Window window = memory->window();
  const auto running = a.read(to_b, here, window);
  REQUIRE(until([&] { return shared_mappings() >= 6; }, a, *b));
  const auto asked = a.write(to_b, here, {0, window.key + 1});
  b->send(from_b, "really the last");
  memory.reset();
  b.reset();
  REQUIRE(until([&] { return a.is_done(running) && a.is_done(asked); }, a));
  for (const auto ticket : {running, asked}) {
    REQUIRE(!a.outcome(ticket));
    CHECK(a.outcome(ticket).error().code == Code::kUnavailable);
    CHECK(a.outcome(ticket).error().message.find("process " + std::to_string(getpid())) !=
          std::string::npos);
  }
  REQUIRE(until([&] { return a.messages.size() == 2; }, a));
  const auto posted = a.rail->send(to_b, {}, a.new_ticket());
  REQUIRE(!posted);
  CHECK(posted.error().code == Code::kUnavailable);
  CHECK(!a.rail->read(to_b, {nullptr, here.data(), 1}, window, a.new_ticket()));
  REQUIRE(until([&] { return shared_mappings() == 0; }, a));
  CHECK(a.each_at_most_once());
}

TEST_CASE("host rail: a peer that was never there") {
  HostNode a;
  const auto address = HostNode().rail->info().address;
  const RailPeer nobody = a.connect(address);
  const auto posted = a.rail->send(nobody, {}, a.new_ticket());
  REQUIRE(!posted);
  CHECK(posted.error().code == Code::kUnavailable);
}

TEST_CASE("host rail: disconnecting gives the tickets back") {
  HostNode a, b;
  const HostShared memory(b, 8 * kMiB);
  std::vector<std::byte> here(8 * kMiB);
  const RailPeer first = a.connect(b);
  const auto sent = a.send(first, "hello");
  const auto read = a.read(first, here, memory.window());
  a.rail->disconnect(first);
  CHECK(!a.is_done(read));
  REQUIRE(until([&] { return a.is_done(read) && a.is_done(sent); }, a));
  CHECK(a.outcome(sent));
  REQUIRE(!a.outcome(read));
  CHECK(a.outcome(read).error().code == Code::kUnavailable);
  CHECK(!a.rail->send(first, {}, a.new_ticket()));
  // The message was in the ring; and the same address again is another peer.
  REQUIRE(until([&] { return b.messages.size() == 1; }, b));
  const RailPeer second = a.connect(b);
  CHECK(second != first);
  a.send(second, "again");
  REQUIRE(until([&] { return b.messages.size() == 2; }, a, b));
}

TEST_CASE("host rail: a rail that closes gives up its tickets and touches nothing more") {
  HostNode a, b;
  const HostShared memory(b, 8 * kMiB);
  std::vector<std::byte> here(8 * kMiB);
  const RailPeer to_b = a.connect(b);
  const auto read = a.read(to_b, here, memory.window());
  REQUIRE(until([&] { return here[0] == std::byte{0} && shared_mappings() == 4; }, a, b));
  a.rail.reset();
  CHECK(!a.is_done(read));
  REQUIRE(until([&] { return shared_mappings() == 1; }, b));
}

TEST_CASE("host rail: private memory is for its own transfers alone") {
  HostNode a, b;
  const HostShared memory(b, 5000);
  fill(memory.bytes(), 9);
  const auto own = value_or_throw(HostMemory::make(5000, HostMemory::Kind::kPrivate));
  const auto refused = a.rail->enlist(own.view(), Access::kPeers);
  REQUIRE(!refused);
  CHECK(refused.error().code == Code::kInvalidArgument);
  const auto registration = value_or_throw(a.rail->enlist(own.view(), Access::kOwn));
  const auto read = a.read(a.connect(b), own.bytes(), memory.window());
  REQUIRE(until([&] { return a.is_done(read); }, a, b));
  CHECK(filled(own.bytes(), 9));
}

TEST_CASE("host rail: a rail reaches itself") {
  HostNode a;
  const HostShared memory(a, 5000);
  fill(memory.bytes(), 9);
  std::vector<std::byte> here(5000);
  const RailPeer self = a.connect(a);
  a.send(self, "me");
  a.read(self, here, memory.window());
  REQUIRE(until([&] { return a.messages.size() == 1 && a.done_count() == 2; }, a));
  CHECK(filled(here, 9));
}

TEST_CASE("host rail: two threads that sleep whenever they can lose no message") {
  constexpr std::size_t kRounds = 5000;
  HostNode a, b;
  const auto run = [](HostNode& node, const HostNode& other, bool first) {
    const RailPeer peer = node.connect(other);
    const TimePoint end = MonotonicClock::now() + kHostPatience;
    std::size_t sent = 0;
    if (first) {
      node.send(peer, "0");
      ++sent;
    }
    while (node.messages.size() < kRounds && MonotonicClock::now() < end) {
      if (!node.poll() && node.rail->arm()) {
        if (!readable(node)) return false;
        node.rail->disarm();
      }
      while (sent < node.messages.size() + (first ? 1 : 0) && sent < kRounds) {
        node.send(peer, "x");
        ++sent;
      }
    }
    // The other one may still need our last.
    while (node.done_count() < sent) node.poll();
    return true;
  };
  bool woken = false;
  std::thread other([&] { woken = run(b, a, false); });
  CHECK(run(a, b, true));
  other.join();
  CHECK(woken);
  CHECK(a.messages.size() == kRounds);
  CHECK(b.messages.size() == kRounds);
}

TEST_SUITE_END();

}  // namespace
}  // namespace leeway::transport::testing
