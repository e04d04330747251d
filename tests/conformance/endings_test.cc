// How operations end: misuse, deadlines, disconnection, closing; each exactly once.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "tests/conformance/node.h"

namespace leeway::conformance {

TEST_CASE("misuse is refused, not obeyed") {
  Node a, b;
  const Peer to_b = a.connect(b);
  const RegisteredMemory here = a.memory(4096), there = b.memory(4096);
  CHECK(code_of(a.read(to_b, {&here, 1, 4096}, at(there))) == Code::kInvalidArgument);
  CHECK(code_of(a.read(to_b, {&here, SIZE_MAX, 2}, at(there))) == Code::kInvalidArgument);
  CHECK(code_of(a.write(to_b, {nullptr, 0, 1}, at(there))) == Code::kInvalidArgument);
  CHECK_FALSE(a.read(to_b, {&here, 0, 1}, RemoteRange{}).status.has_value());
  CHECK(code_of(a.send(Peer(), "x")) == Code::kUnavailable);
  CHECK(code_of(a.send(to_b, "x", MonotonicClock::now())) == Code::kTimedOut);
  for (const std::size_t size : {0, 1, 3, 300}) {
    CAPTURE(size);
    const std::vector<std::byte> nonsense(size, std::byte{0xa5});
    const auto refused = a.on_thread([&] { return a.endpoint->connect(nonsense); });
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == Code::kInvalidArgument);
  }
  CHECK(a.send(to_b, "and all is well").status.has_value());
}

TEST_CASE("completions come after the call that began, never within") {
  Node a, b;
  const Peer to_b = a.connect(b);
  const RegisteredMemory here = a.memory(64), there = b.memory(64);
  struct Seen {
    bool calling = true, within = false;
  };
  const auto seen = std::make_shared<Seen>();
  a.on_thread([&] {
    const auto note = [seen](Outcome) { seen->within |= seen->calling; };
    a.endpoint->send(Peer(), {}, soon(), note);
    a.endpoint->send(to_b, {}, MonotonicClock::now(), note);
    a.endpoint->read(to_b, {&here, 60, 8}, at(there), soon(), note);
    a.endpoint->read(to_b, {&here, 0, 0}, at(there), soon(), note);
    seen->calling = false;
    return 0;
  });
  CHECK_FALSE(a.on_thread([&] { return seen->within; }));
}

TEST_CASE("a peer that makes no progress costs its deadline, no more") {
  constexpr std::size_t kSize = 4 << 20;
  Node a, silent;
  const Peer peer = a.connect(silent);
  const RegisteredMemory here = a.memory(kSize), there = silent.memory(kSize);
  fill(there, 9);
  Standstill standstill(silent);
  const TimePoint deadline = in(milliseconds(200));
  const Outcome outcome = a.read(peer, {&here, 0, kSize}, at(there), deadline);
  if (outcome.status) {
    CHECK(same(here, there));  // some fabrics move bytes without the other side
  } else {
    CHECK(code_of(outcome) == Code::kTimedOut);
    CHECK(MonotonicClock::now() >= deadline);
    CHECK(MonotonicClock::now() < deadline + std::chrono::seconds(2));
  }
  standstill.end();
  // The transfer that was given up disturbs nothing.
  CHECK(a.send(peer, "later").status.has_value());
  CHECK(silent.has_received(1));
}

TEST_CASE("memory that is said to be released stays as it is") {
  constexpr std::size_t kSize = 1 << 20, kCount = 40;
  Node a({.max_transfer = 64 << 10}), silent;
  const Peer peer = a.connect(silent);
  const RegisteredMemory there = silent.memory(kSize);
  fill(there, 9);
  std::vector<RegisteredMemory> here;
  for (std::size_t i = 0; i < kCount; ++i) here.push_back(a.memory(kSize));
  std::vector<Outcome> outcomes(kCount);
  std::atomic<std::size_t> ended = 0;
  {
    Standstill standstill(silent);
    a.on_thread([&] {
      for (std::size_t i = 0; i < kCount; ++i)
        a.endpoint->read(peer, {&here[i], 0, kSize}, at(there),
                         in(milliseconds(20 + 2 * static_cast<int>(i))), [&, i](Outcome outcome) {
                           if (outcome.memory_released)
                             std::ranges::fill(here[i].bytes(), std::byte{0x11});
                           outcomes[i] = std::move(outcome);
                           ended.fetch_add(1);
                           ended.notify_all();
                         });
      return 0;
    });
    for (std::size_t seen = ended; seen < kCount; seen = ended) ended.wait(seen);
  }
  // Whatever was still on its way has come after this: it came in order, or not at all.
  const RegisteredMemory last = a.memory(kSize);
  CHECK(a.read(peer, {&last, 0, kSize}, at(there)).status.has_value());
  CHECK(a.send(peer, "last").status.has_value());
  std::size_t touched = 0;
  for (std::size_t i = 0; i < kCount; ++i)
    if (outcomes[i].memory_released)
      touched +=
          !std::ranges::all_of(here[i].bytes(), [](std::byte b) { return b == std::byte{0x11}; });
  CHECK(touched == 0);
}

TEST_CASE("memory may go while a transfer that was given up still uses it") {
  constexpr std::size_t kSize = 4 << 20;
  RegisteredMemory there;
  Node a, silent;
  const Peer peer = a.connect(silent);
  there = silent.memory(kSize);
  for (int i = 0; i < 5; ++i) {
    Standstill standstill(silent);
    RegisteredMemory here = a.memory(kSize);
    (void)a.read(peer, {&here, 0, kSize}, at(there), in(milliseconds(20)));
    here = {};
    standstill.end();
    CHECK(a.send(peer, "go on " + std::to_string(i)).status.has_value());
  }
  CHECK(silent.has_received(5));
  const RegisteredMemory last = a.memory(kSize);
  CHECK(a.read(peer, {&last, 0, kSize}, at(there)).status.has_value());
}

TEST_CASE("disconnecting fails what is pending to that peer alone, and the peer can come back") {
  Node a, silent, b;
  Standstill standstill(silent);
  const Peer to_silent = a.connect(silent), to_b = a.connect(b);
  const RegisteredMemory here = a.memory(4 << 20), there = silent.memory(4 << 20),
                         third = b.memory(4 << 20);
  Tally lost, kept;
  a.on_thread([&] {
    for (int i = 0; i < 20; ++i) {
      const std::string text = std::to_string(i);
      a.endpoint->read(to_silent, {&here, 0, 4 << 20}, at(there), soon(), lost.next());
      a.endpoint->write(to_b, {&here, 0, 1 << 20}, at(third), soon(), kept.next());
      a.endpoint->send(to_b, std::as_bytes(std::span(text)), soon(), kept.next());
    }
    a.endpoint->disconnect(to_silent);
    a.endpoint->disconnect(to_silent);
    return 0;
  });
  CHECK(lost.all_ended());
  CHECK(kept.all_ended());
  CHECK(lost.with(Code::kUnavailable) == 20);
  CHECK_MESSAGE(kept.good() == 40, kept.first_error());
  CHECK(lost.first_error().find("disconnected") != std::string::npos);
  CHECK(code_of(a.send(to_silent, "x")) == Code::kUnavailable);
  standstill.end();
  const Peer again = a.connect(silent);
  CHECK(again != to_silent);
  const Outcome back = a.send(again, "back");
  CHECK_MESSAGE(back.status.has_value(), back.status.error().message);
  CHECK(silent.has_received(1));
}

TEST_CASE("what is pending when an endpoint closes is cancelled, each once") {
  if (!fabric().may_close_in_reads()) return;
  constexpr int kCount = 50;
  std::atomic<int> good = 0, cancelled = 0, ended = 0, after = 0;
  bool timer_ran = false;
  Node silent;
  Standstill standstill(silent);
  const RegisteredMemory there = silent.memory(1 << 20);
  RegisteredMemory here;
  {
    Node a;
    const Peer peer = a.connect(silent);
    here = a.memory(1 << 20);
    a.on_thread([&] {
      for (int i = 0; i < kCount; ++i)
        a.endpoint->read(peer, {&here, 0, 1 << 20}, at(there), soon(), [&](Outcome outcome) {
          ++ended;
          good += outcome.status.has_value();
          cancelled += code_of(outcome) == Code::kCancelled;
          // What a completion begins now is cancelled too.
          a.endpoint->send(peer, {}, soon(), [&](Outcome) { ++after; });
        });
      a.endpoint->at(soon(), [&] { timer_ran = true; });
      return 0;
    });
  }
  CHECK(ended == kCount);
  CHECK(good + cancelled == kCount);
  CHECK(after == kCount);
  CHECK_FALSE(timer_ran);
}

TEST_CASE("both sides close with everything in flight") {
  if (!fabric().may_close_in_reads()) return;
  constexpr std::size_t kSize = 1 << 20;
  for (int round = 0; round < 6; ++round) {
    CAPTURE(round);
    Tally tally;
    std::vector<RegisteredMemory> memories;  // outlive the endpoints
    {
      auto a = std::make_unique<Node>(), b = std::make_unique<Node>();
      const Peer to_b = a->connect(*b), to_a = b->connect(*a);
      memories.push_back(a->memory(kSize));
      memories.push_back(b->memory(kSize));
      const auto begin = [&](Node& node, Peer peer, int mine) {
        node.on_thread([&] {
          for (int i = 0; i < 30; ++i) {
            const std::string text = std::to_string(i) + (mine == 0 ? "a" : "b");
            const LocalRange local{&memories[static_cast<std::size_t>(mine)], 0, kSize};
            const RegisteredMemory& other = memories[static_cast<std::size_t>(1 - mine)];
            node.endpoint->write(peer, local, at(other), soon(), tally.next());
            node.endpoint->read(peer, local, at(other), soon(), tally.next());
            node.endpoint->send(peer, std::as_bytes(std::span(text)), soon(), tally.next());
          }
          return 0;
        });
      };
      begin(*a, to_b, 0);
      begin(*b, to_a, 1);
      if (round % 2 == 0) std::this_thread::sleep_for(milliseconds(round));  // not a wait: a mix
      std::jthread other([&] { b.reset(); });
      a.reset();
    }
    CHECK(tally.all_ended());
    CHECK(tally.twice() == 0);
    CHECK(tally.begun() == 180);
  }
}

TEST_CASE("an endpoint closes in the middle of reads, on either side of them") {
  if (!fabric().may_close_in_reads()) return;
  constexpr std::size_t kSize = 1 << 20, kReads = 24;
  for (std::size_t round = 0; round < 3 * kReads; ++round) {
    CAPTURE(round);
    std::vector<RegisteredMemory> memories;  // outlive the endpoints
    Tally tally;
    auto reader = std::make_unique<Node>(), source = std::make_unique<Node>();
    const Peer peer = reader->connect(*source);
    memories.push_back(source->memory(kSize));
    for (std::size_t i = 0; i < kReads; ++i) memories.push_back(reader->memory(kSize));
    std::atomic<std::size_t> ended = 0;
    reader->on_thread([&] {
      for (std::size_t i = 0; i < kReads; ++i)
        reader->endpoint->read(peer, {&memories[1 + i], 0, kSize}, at(memories[0]), soon(),
                               [&, each = tally.next()](Outcome outcome) {
                                 each(std::move(outcome));
                                 ended.fetch_add(1);
                                 ended.notify_all();
                               });
      return 0;
    });
    // Some are through, some half, some have not begun.
    const std::size_t wanted = round % kReads;
    for (std::size_t seen = ended; seen < wanted; seen = ended) ended.wait(seen);
    std::jthread other;
    if (round / kReads == 2)
      other = std::jthread([&] { source.reset(); });
    else if (round / kReads == 1)
      source.reset();
    reader.reset();
    CHECK(tally.all_ended());
    CHECK(tally.twice() == 0);
  }
}

TEST_CASE("bytes that a rail has mapped stay, whatever becomes of the peer") {
  constexpr std::size_t kSize = 8192;
  Node a;
  auto b = std::make_unique<Node>();
  const Peer peer = a.connect(*b);
  RegisteredMemory there = b->memory(kSize);
  const RegisteredMemory here = a.memory(kSize);
  fill(there, 3);
  const auto map = [&](std::uint64_t offset, std::size_t size) {
    return a.on_thread([&] { return a.endpoint->map(peer, at(there, offset), size); });
  };
  CHECK(map(0, kSize) == nullptr);  // nothing has brought it here
  REQUIRE(a.read(peer, {&here, 0, kSize}, at(there)).status.has_value());
  const auto bytes = map(1000, kSize - 1000);
  if (a.endpoint->info().fabric == "shm") REQUIRE(bytes != nullptr);
  if (bytes == nullptr) return;
  CHECK(map(1001, kSize - 1000) == nullptr);
  CHECK(map(kSize + 1, 0) == nullptr);
  CHECK(map(UINT64_MAX - 10, 100) == nullptr);
  CHECK(map(0, SIZE_MAX) == nullptr);
  there = {};
  b.reset();
  a.disconnect(peer);
  CHECK(std::ranges::equal(std::span(bytes.get(), kSize - 1000), here.bytes().subspan(1000)));
}

TEST_CASE("an endpoint that was never started closes, and one without peers") {
  auto never = open_endpoint();
  const RegisteredMemory memory = value_or_throw(never->allocate(4096, transport::Access::kPeers));
  never.reset();
  const Node alone;
  CHECK(alone.endpoint->counters().messages_sent == 0);
}

}  // namespace leeway::conformance
