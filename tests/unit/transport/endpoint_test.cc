// Two endpoints in one process, on each fabric that this machine has: messages, reads, writes, and
// what goes wrong without anybody dying.
#include "transport/endpoint.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>

#include "tests/unit/transport/fixture.h"

namespace leeway::transport {
namespace {

using namespace testing;
using std::chrono::milliseconds;

bool same(const RegisteredMemory& a, const RegisteredMemory& b) {
  return std::ranges::equal(a.bytes(), b.bytes());
}

}  // namespace

TEST_CASE("an endpoint says what it got") {
  for (const std::string& fabric : fabrics()) {
    CAPTURE(fabric);
    const Node node(fabric);
    const EndpointInfo& info = node.endpoint->info();
    CHECK(info.fabric == fabric);
    CHECK(info.provider.find(fabric) != std::string::npos);
    CHECK_FALSE(info.device.empty());
    CHECK_FALSE(info.address.empty());
    CHECK(info.max_message >= 4096);
    if (fabric != "shm") CHECK(info.printable.find(bind_address() + ":") != std::string::npos);
  }
}

TEST_CASE("messages go both ways, and each is counted") {
  for (const std::string& fabric : fabrics()) {
    CAPTURE(fabric);
    Node a(fabric), b(fabric);
    const Peer to_b = a.connect(b), to_a = b.connect(a);
    CHECK(a.connect(b) == to_b);  // the same address again is the same peer
    const std::string longest(a.endpoint->info().max_message, 'x');
    CHECK(a.send(to_b, "hello").status.has_value());
    CHECK(a.send(to_b, longest).status.has_value());
    CHECK(a.send(to_b, "").status.has_value());
    CHECK(b.send(to_a, "answer").status.has_value());
    REQUIRE(b.has_received(3));
    REQUIRE(a.has_received(1));
    auto got = b.messages();
    std::ranges::sort(got);
    CHECK(got == std::vector<std::string>{"", "hello", longest});
    CHECK(a.messages() == std::vector<std::string>{"answer"});
    CHECK(a.endpoint->counters().messages_sent == 3);
    CHECK(b.endpoint->counters().messages_received == 3);
    const Outcome too_long = a.send(to_b, longest + "x");
    REQUIRE_FALSE(too_long.status.has_value());
    CHECK(too_long.status.error().code == Code::kInvalidArgument);
  }
}

TEST_CASE("reads and writes of every kind of size") {
  for (const std::string& fabric : fabrics()) {
    Node a(fabric), b(fabric);
    const Peer to_b = a.connect(b);
    std::uint64_t moved = 0;
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{7},
                                   std::size_t{4095}, std::size_t{65537}, std::size_t{4} << 20}) {
      CAPTURE(fabric);
      CAPTURE(size);
      const RegisteredMemory here = memory(a, size), there = memory(b, size);
      const RemoteRange remote{there.remote()};
      fill(there, 1 + size);
      const Outcome read = a.read(to_b, {&here, 0, size}, remote);
      REQUIRE(read.status.has_value());
      CHECK(read.memory_released);
      CHECK(same(here, there));
      fill(here, 2 + size);
      REQUIRE(a.write(to_b, {&here, 0, size}, remote).status.has_value());
      CHECK(same(here, there));
      moved += size;
    }
    CHECK(a.endpoint->counters().bytes_read == moved);
    CHECK(a.endpoint->counters().bytes_written == moved);
  }
}

TEST_CASE("offsets, and transfers longer than the provider takes at once") {
  for (const std::string& fabric : fabrics()) {
    CAPTURE(fabric);
    Node a(fabric, 10'000), b(fabric);
    const Peer to_b = a.connect(b);
    const RegisteredMemory here = memory(a, 300'000), there = memory(b, 300'000);
    fill(here, 1);
    fill(there, 2);
    std::vector<std::byte> expected(there.bytes().begin(), there.bytes().end());
    std::copy_n(here.bytes().begin() + 33, 99'999, expected.begin() + 4097);
    REQUIRE(a.write(to_b, {&here, 33, 99'999}, {there.remote(), 4097}).status.has_value());
    CHECK(std::ranges::equal(there.bytes(), expected));
    REQUIRE(a.read(to_b, {&here, 0, 300'000}, {there.remote()}).status.has_value());
    CHECK(same(here, there));
    CHECK(a.endpoint->counters().bytes_written == 99'999);
  }
}

TEST_CASE("T7: many in flight, reads and writes, in both directions at once") {
  constexpr std::size_t kEach = 64 * 1024, kCount = 100, kAll = kEach * kCount;
  for (const std::string& fabric : fabrics()) {
    CAPTURE(fabric);
    Node a(fabric), b(fabric);
    struct Side {
      Node& node;
      Peer peer;
      RegisteredMemory source, written, read;
    };
    Side sides[] = {{a, a.connect(b), memory(a, kAll), memory(a, kAll), memory(a, kAll)},
                    {b, b.connect(a), memory(b, kAll), memory(b, kAll), memory(b, kAll)}};
    fill(sides[0].source, 1);
    fill(sides[1].source, 2);
    std::atomic<std::size_t> good = 0, ended = 0;
    const auto done = [&](Outcome outcome) {
      good += outcome.status.has_value();
      ++ended;
      ended.notify_all();
    };
    for (int i : {0, 1}) {
      Side &me = sides[i], &other = sides[1 - i];
      me.node.endpoint->post([&] {
        for (std::size_t at = 0; at < kAll; at += kEach) {
          me.node.endpoint->write(me.peer, {&me.source, at, kEach}, {other.written.remote(), at},
                                  soon(), done);
          me.node.endpoint->read(me.peer, {&me.read, at, kEach}, {other.source.remote(), at},
                                 soon(), done);
        }
      });
    }
    for (std::size_t seen = ended; seen < 4 * kCount; seen = ended) ended.wait(seen);
    CHECK(good == 4 * kCount);
    for (int i : {0, 1}) {
      CHECK(same(sides[i].source, sides[1 - i].written));
      CHECK(same(sides[i].source, sides[1 - i].read));
    }
  }
}

TEST_CASE("a flood of messages from many threads arrives whole") {
  constexpr int kThreads = 4, kEach = 500;
  for (const std::string& fabric : fabrics()) {
    CAPTURE(fabric);
    Node a(fabric), b(fabric);
    const Peer to_b = a.connect(b);
    std::atomic<int> failed = 0;
    {
      std::vector<std::jthread> threads;
      for (int t = 0; t < kThreads; ++t)
        threads.emplace_back([&, t] {
          for (int i = 0; i < kEach; ++i)
            a.endpoint->post([&, t, i] {
              const std::string text = std::to_string(t * kEach + i);
              a.endpoint->send(to_b, std::as_bytes(std::span(text)), soon(),
                               [&](Outcome outcome) { failed += !outcome.status.has_value(); });
            });
        });
    }
    REQUIRE(b.has_received(kThreads * kEach));
    CHECK(failed == 0);
    std::vector<int> numbers;
    for (const std::string& text : b.messages()) numbers.push_back(std::stoi(text));
    std::ranges::sort(numbers);
    bool each_once = true;
    for (int i = 0; i < kThreads * kEach; ++i)
      each_once &= numbers[static_cast<std::size_t>(i)] == i;
    CHECK(each_once);
  }
}

TEST_CASE("a wrong key or address ends in an error, in bounded time, and costs nobody else") {
  for (const std::string& fabric : fabrics()) {
    CAPTURE(fabric);
    Node a(fabric), b(fabric), c(fabric);
    const Peer to_b = a.connect(b), to_c = a.connect(c);
    const RegisteredMemory here = memory(a, 4096), there = memory(b, 4096), third = memory(c, 4096);
    fill(there, 1);
    const std::vector<std::byte> before(there.bytes().begin(), there.bytes().end());
    const RemoteRange wrong =
        fabric == "shm"
            ? at_window({4096, there.remote()->front().key})
            : at_window({there.remote()->front().address, there.remote()->front().key + 12345});
    const Outcome outcome =
        a.write(to_b, {&here, 0, 4096}, wrong, MonotonicClock::now() + milliseconds(500));
    REQUIRE_FALSE(outcome.status.has_value());
    MESSAGE(outcome.status.error().message);
    CHECK(std::ranges::equal(there.bytes(), before));
    fill(third, 2);
    CHECK(a.read(to_c, {&here, 0, 4096}, {third.remote()}).status.has_value());
    CHECK(same(here, third));
  }
}

TEST_CASE("misuse is refused, not obeyed") {
  Node a("tcp"), b("tcp");
  const Peer to_b = a.connect(b);
  const RegisteredMemory here = memory(a, 4096);
  const auto code = [](const Outcome& outcome) {
    return outcome.status ? Code::kInternal : outcome.status.error().code;
  };
  CHECK(code(a.read(to_b, {&here, 1, 4096}, {})) == Code::kInvalidArgument);
  CHECK(code(a.read(to_b, {&here, SIZE_MAX, 2}, {})) == Code::kInvalidArgument);
  CHECK(code(a.read(to_b, {nullptr, 0, 1}, {})) == Code::kInvalidArgument);
  CHECK(code(a.send(Peer(), "x")) == Code::kUnavailable);
  CHECK(code(a.send(to_b, "x", MonotonicClock::now())) == Code::kTimedOut);
  const std::byte nonsense[3] = {};
  const auto refused = a.on_thread([&] { return a.endpoint->connect(nonsense); });
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().code == Code::kInvalidArgument);
  a.on_thread([&] {
    a.endpoint->disconnect(to_b);
    a.endpoint->disconnect(to_b);
    return 0;
  });
  CHECK(code(a.send(to_b, "x")) == Code::kUnavailable);
  // And again: the same address is a new peer.
  const Peer again = a.connect(b);
  CHECK(again != to_b);
  CHECK(a.send(again, "back").status.has_value());
  CHECK(b.has_received(1));
}

TEST_CASE("timers run in their order, and not early") {
  Node node("tcp");
  std::vector<int> order;
  std::promise<void> last;
  const TimePoint start = MonotonicClock::now();
  bool early = false;
  node.endpoint->post([&] {
    for (const int ms : {30, 10, 20})
      node.endpoint->at(start + milliseconds(ms), [&, ms] {
        early |= MonotonicClock::now() < start + milliseconds(ms);
        order.push_back(ms);
        if (order.size() == 3) last.set_value();
      });
  });
  last.get_future().get();
  node.on_thread([] { return 0; });
  CHECK(order == std::vector<int>{10, 20, 30});
  CHECK_FALSE(early);
}

TEST_CASE("what is pending when an endpoint closes is cancelled, each once") {
  constexpr int kCount = 50;
  std::atomic<int> cancelled = 0, ended = 0, after = 0;
  bool timer_ran = false;
  Node silent("tcp");
  std::promise<void> block, blocked;
  silent.endpoint->post([&] {  // its thread makes no progress now
    blocked.set_value();
    block.get_future().wait();
  });
  blocked.get_future().wait();
  const RegisteredMemory there = memory(silent, 1 << 20);
  RegisteredMemory here;
  {
    Node a("tcp");
    const Peer peer = a.connect(silent.endpoint->info().address);
    here = memory(a, 1 << 20);
    a.on_thread([&] {
      for (int i = 0; i < kCount; ++i)
        a.endpoint->read(peer, {&here, 0, 1 << 20}, {there.remote()}, soon(), [&](Outcome outcome) {
          ++ended;
          cancelled += !outcome.status && outcome.status.error().code == Code::kCancelled;
          // What a completion begins now is cancelled too.
          a.endpoint->send(peer, {}, soon(), [&](Outcome) { ++after; });
        });
      a.endpoint->at(soon(), [&] { timer_ran = true; });
      return 0;
    });
  }
  CHECK(ended == kCount);
  CHECK(cancelled == kCount);
  CHECK(after == kCount);
  CHECK_FALSE(timer_ran);
  block.set_value();
}

TEST_CASE("disconnecting fails what is pending to that peer alone") {
  Node a("tcp"), silent("tcp"), b("tcp");
  std::promise<void> block, blocked;
  silent.endpoint->post([&] {
    blocked.set_value();
    block.get_future().wait();
  });
  blocked.get_future().wait();
  const Peer to_silent = a.connect(silent.endpoint->info().address), to_b = a.connect(b);
  const RegisteredMemory here = memory(a, 4096), there = memory(silent, 4096);
  std::promise<Outcome> ended;
  a.on_thread([&] {
    a.endpoint->read(to_silent, {&here, 0, 4096}, {there.remote()}, soon(),
                     [&](Outcome outcome) { ended.set_value(std::move(outcome)); });
    return 0;
  });
  a.on_thread([&] {
    a.endpoint->disconnect(to_silent);
    return 0;
  });
  const Outcome outcome = ended.get_future().get();
  REQUIRE_FALSE(outcome.status.has_value());
  CHECK(outcome.status.error().code == Code::kUnavailable);
  CHECK(outcome.status.error().message.find(bind_address()) != std::string::npos);
  CHECK(a.send(to_b, "still here").status.has_value());
  block.set_value();
}

TEST_CASE("a peer that makes no progress costs its deadline, no more") {
  for (const std::string& fabric : fabrics()) {
    CAPTURE(fabric);
    Node a(fabric), silent(fabric);
    std::promise<void> block, blocked;
    silent.endpoint->post([&] {
      blocked.set_value();
      block.get_future().wait();
    });
    blocked.get_future().wait();
    const Peer peer = a.connect(silent.endpoint->info().address);
    const RegisteredMemory here = memory(a, 4 << 20), there = memory(silent, 4 << 20);
    const TimePoint deadline = MonotonicClock::now() + milliseconds(200);
    const Outcome outcome = a.read(peer, {&here, 0, 4 << 20}, {there.remote()}, deadline);
    if (!outcome.status) {  // shm may copy without the other side
      CHECK(outcome.status.error().code == Code::kTimedOut);
      CHECK(MonotonicClock::now() >= deadline);
      MESSAGE(outcome.status.error().message);
    } else {
      CHECK(fabric == "shm");
    }
    block.set_value();
    // The transfer that was given up disturbs nothing.
    CHECK(a.send(peer, "later").status.has_value());
    CHECK(silent.has_received(1));
  }
}

TEST_CASE("memory is aligned, zeroed and outlives its endpoint") {
  RegisteredMemory kept;
  {
    Node node("tcp");
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{5'000'000}}) {
      kept = memory(node, size);
      CHECK(kept.bytes().size() == size);
      CHECK(reinterpret_cast<std::uintptr_t>(kept.bytes().data()) % 4096 == 0);
      CHECK(std::ranges::all_of(kept.bytes(), [](std::byte b) { return b == std::byte{0}; }));
    }
    const auto refused = node.endpoint->allocate(std::size_t{1} << 60, Access::kOwn);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == Code::kResourceExhausted);
  }
  kept.bytes()[0] = std::byte{1};
}

TEST_CASE("Y2: nothing stays in /dev/shm") {
  {
    Node a("shm"), b("shm");
    CHECK(a.send(a.connect(b), "x").status.has_value());
  }
  CHECK(count_shm_segments(getpid()) == 0);
}

}  // namespace leeway::transport
