// Endpoints in different processes: the same things as within one, and peers that die.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <utility>

#include "tests/unit/transport/child.h"

namespace leeway::transport {
namespace {

using namespace testing;
using std::chrono::milliseconds;

}  // namespace

TEST_CASE("messages, reads and writes between processes") {
  for (const std::string& fabric : fabrics()) {
    CAPTURE(fabric);
    Node node(fabric);
    Child child(fabric, node);
    REQUIRE(node.has_received(1));
    const Peer peer = node.connect(child.address());
    CHECK(node.send(peer, "and back").status.has_value());
    REQUIRE(node.has_received(2));
    CHECK(node.messages() == std::vector<std::string>{"hello", "and back"});
    const RegisteredMemory one = memory(node, kChildMemory), two = memory(node, kChildMemory);
    fill(one, 77);
    REQUIRE(node.read(peer, {&two, 0, kChildMemory}, child.memory()).status.has_value());
    CHECK(std::ranges::equal(one.bytes(), two.bytes()));
    fill(one, 5);
    REQUIRE(node.write(peer, {&one, 3, 1'000'001}, child.memory(17)).status.has_value());
    REQUIRE(node.read(peer, {&two, 3, 1'000'001}, child.memory(17)).status.has_value());
    CHECK(std::ranges::equal(one.bytes().subspan(3, 1'000'001), two.bytes().subspan(3, 1'000'001)));
  }
}

TEST_CASE(
    "T5: a peer killed with -9 costs its operations their deadline, and nobody else anything") {
  constexpr int kCount = 20;
  for (const std::string& fabric : fabrics()) {
    CAPTURE(fabric);
    Node node(fabric);
    Child dying(fabric, node), living(fabric, node);
    const pid_t dead = dying.pid();
    REQUIRE(node.has_received(2));
    const Peer to_dying = node.connect(dying.address()), to_living = node.connect(living.address());
    const RegisteredMemory here = memory(node, kChildMemory);
    REQUIRE(node.read(to_dying, {&here, 0, 4096}, dying.memory()).status.has_value());
    // Stopped first, so that it dies with operations under way.
    dying.signal(SIGSTOP);
    std::atomic<int> ended = 0, late = 0;
    const TimePoint deadline = MonotonicClock::now() + milliseconds(500);
    const auto done = [&](Outcome) {
      late += MonotonicClock::now() > deadline + std::chrono::seconds(5);
      ++ended;
      ended.notify_all();
    };
    const std::string text(node.endpoint->info().max_message, 'x');
    const auto begin = [&] {
      for (int i = 0; i < kCount; ++i) {
        node.endpoint->write(to_dying, {&here, 0, kChildMemory}, dying.memory(), deadline, done);
        node.endpoint->read(to_dying, {&here, 0, kChildMemory}, dying.memory(), deadline, done);
        node.endpoint->send(to_dying, std::as_bytes(std::span(text)), deadline, done);
      }
      return 0;
    };
    node.on_thread(begin);
    dying.kill();
    node.on_thread(begin);
    for (int seen = ended; seen < 6 * kCount; seen = ended) ended.wait(seen);
    CHECK(late == 0);
    node.on_thread([&] {
      node.endpoint->disconnect(to_dying);
      return 0;
    });
    for (int i = 0; i < 3; ++i)
      CHECK(node.read(to_living, {&here, 0, kChildMemory}, living.memory()).status.has_value());
    CHECK(node.write(to_living, {&here, 0, kChildMemory}, living.memory()).status.has_value());
    CHECK(node.send(to_living, "still there").status.has_value());
    CHECK(node.has_received(3));
    CHECK(count_shm_segments(dead) == 0);
  }
}

TEST_CASE("a peer that leaves before we look at it harms nothing") {
  Node node("tcp");
  std::promise<void> block, blocked;
  node.endpoint->post([&] {
    blocked.set_value();
    block.get_future().wait();
  });
  blocked.get_future().wait();
  Child child("tcp", node, Child::Leaves::kAtOnce);
  CHECK(child.wait() == 0);
  const auto address = child.address();
  block.set_value();
  const Peer gone = node.connect(address);
  CHECK_FALSE(
      node.send(gone, "anybody?", MonotonicClock::now() + milliseconds(300)).status.has_value());
  Child next("tcp", node);
  CHECK(node.send(node.connect(next.address()), "you").status.has_value());
}

// The end of the connection and what came over it before are seen in one go.
TEST_CASE("the last words of a peer that has left are heard, and harm nothing") {
  for (const std::string& fabric : fabrics()) {
    CAPTURE(fabric);
    std::promise<void> left;
    bool first = true;
    Node node(fabric, EndpointOptions{}.max_transfer, [&] {
      if (std::exchange(first, false)) left.get_future().wait_for(kPatience);
    });
    {
      Child child(fabric, node, Child::Leaves::kAfterLastWords);
      CHECK(child.wait() == 0);
    }
    left.set_value();
    CHECK(node.has_received(1));
    Child next(fabric, node);
    CHECK(node.send(node.connect(next.address()), "you").status.has_value());
  }
}

TEST_CASE("peers come and go") {
  for (const std::string& fabric : fabrics()) {
    CAPTURE(fabric);
    Node node(fabric);
    for (int i = 0; i < 2; ++i) {
      Child child(fabric, node, Child::Leaves::kAtOnce);
      CHECK(child.wait() == 0);
      const Peer gone = node.connect(child.address());
      const Outcome outcome =
          node.send(gone, "anybody?", MonotonicClock::now() + milliseconds(100));
      CHECK_FALSE(outcome.status.has_value());
      node.on_thread([&] {
        node.endpoint->disconnect(gone);
        return 0;
      });
    }
    Child next(fabric, node);
    CHECK(node.send(node.connect(next.address()), "you").status.has_value());
  }
}

}  // namespace leeway::transport
