// Endpoints in different processes: the same things as within one, and peers that come, go and die.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "tests/conformance/puppet.h"

namespace leeway::conformance {
namespace {

constexpr std::size_t kSize = std::size_t{4} << 20;

// The same bytes as a puppet's memory of that seed.
RegisteredMemory filled(Node& node, std::size_t bytes, std::uint64_t seed) {
  RegisteredMemory memory = node.memory(bytes);
  fill(memory, seed);
  return memory;
}

}  // namespace

TEST_CASE("messages, reads and writes between processes, started from either side") {
  Node node;
  Puppet puppet;
  const std::uint32_t theirs = puppet.allocate(kSize, 77);
  const Peer peer = node.connect(puppet.address());
  const RegisteredMemory one = filled(node, kSize, 77), two = node.memory(kSize);
  REQUIRE(node.read(peer, {&two, 0, kSize}, puppet.memory(theirs)).status.has_value());
  CHECK(same(one, two));
  fill(one, 5);
  REQUIRE(node.write(peer, {&one, 0, kSize}, puppet.memory(theirs)).status.has_value());
  CHECK(puppet.hash_of(theirs) == hash(one.bytes()));
  REQUIRE(node.write(peer, {&one, 3, 1'000'001}, puppet.memory(theirs, 17)).status.has_value());
  REQUIRE(node.read(peer, {&two, 3, 1'000'001}, puppet.memory(theirs, 17)).status.has_value());
  CHECK(std::ranges::equal(one.bytes().subspan(3, 1'000'001), two.bytes().subspan(3, 1'000'001)));
  CHECK(node.send(peer, "there").status.has_value());
  CHECK(puppet.received(1) == 1);

  const std::uint32_t us = puppet.connect(node.endpoint->info().address);
  CHECK(puppet.send(us, "and back") == 1);
  REQUIRE(node.has_received(1));
  CHECK(node.messages() == std::vector<std::string>{"and back"});
  CHECK(puppet.transfer(
            {.peer = us, .memory = theirs, .size = kSize, .remote = at(two), .write = true}) == 1);
  node.settle();
  CHECK(puppet.hash_of(theirs) == hash(two.bytes()));
  fill(two, 6);
  node.settle();
  CHECK(puppet.transfer({.peer = us, .memory = theirs, .size = kSize, .remote = at(two)}) == 1);
  CHECK(puppet.hash_of(theirs) == hash(two.bytes()));
}

TEST_CASE("T7: five processes, each with every other, both ways at once") {
  constexpr std::size_t kCount = 4, kShare = std::size_t{1} << 20;
  constexpr std::uint32_t kTimes = 8;
  Node node;
  std::vector<std::unique_ptr<Puppet>> puppets;
  std::vector<std::uint32_t> sources, targets;
  for (std::size_t i = 0; i < kCount; ++i) {
    puppets.push_back(std::make_unique<Puppet>());
    sources.push_back(puppets[i]->allocate(kShare, 100 + i));
    targets.push_back(puppets[i]->allocate(kShare * (kCount + 1), 0));
  }
  const RegisteredMemory source = filled(node, kShare, 99), target = node.memory(kShare * kCount);
  // Everybody writes into a place of its own at everybody else, and reads that place back.
  Tally tally;
  for (std::size_t i = 0; i < kCount; ++i) {
    const Peer peer = node.connect(puppets[i]->address());
    node.on_thread([&] {
      for (std::uint32_t t = 0; t < kTimes; ++t)
        node.endpoint->write(peer, {&source, 0, kShare},
                             puppets[i]->memory(targets[i], kCount * kShare), soon(), tally.next());
      return 0;
    });
    for (std::size_t j = 0; j < kCount; ++j) {
      if (i == j) continue;
      const std::uint32_t other = puppets[i]->connect(puppets[j]->address());
      puppets[i]->transfer({.peer = other,
                            .memory = sources[i],
                            .size = kShare,
                            .remote = puppets[j]->memory(targets[j], i * kShare),
                            .write = true,
                            .times = kTimes,
                            .wait = false});
      puppets[i]->send(other, "from " + std::to_string(i), kTimes, false);
    }
    const std::uint32_t us = puppets[i]->connect(node.endpoint->info().address);
    puppets[i]->transfer({.peer = us,
                          .memory = sources[i],
                          .size = kShare,
                          .remote = at(target, i * kShare),
                          .write = true,
                          .times = kTimes,
                          .wait = false});
  }
  REQUIRE(tally.all_ended());
  CHECK_MESSAGE(tally.good() == kCount * kTimes, tally.first_error());
  for (std::size_t i = 0; i < kCount; ++i) {
    CAPTURE(i);
    CHECK(puppets[i]->received((kCount - 1) * kTimes) == (kCount - 1) * kTimes);
    // One that is waited for comes after those that were begun before it, or shows what failed.
    for (std::size_t j = 0; j < kCount; ++j) {
      if (i == j) continue;
      CHECK(puppets[i]->transfer({.peer = puppets[i]->connect(puppets[j]->address()),
                                  .memory = sources[i],
                                  .size = kShare,
                                  .remote = puppets[j]->memory(targets[j], i * kShare),
                                  .write = true}) == 1);
    }
    CHECK(puppets[i]->transfer({.peer = puppets[i]->connect(node.endpoint->info().address),
                                .memory = sources[i],
                                .size = kShare,
                                .remote = at(target, i * kShare),
                                .write = true}) == 1);
  }
  RegisteredMemory expected = node.memory(kShare * (kCount + 1));
  for (std::size_t i = 0; i < kCount; ++i)
    fill(expected.bytes().subspan(i * kShare, kShare), 100 + i);
  node.settle();
  CHECK(std::ranges::equal(target.bytes(), expected.bytes().first(kCount * kShare)));
  fill(expected.bytes().subspan(kCount * kShare, kShare), 99);
  for (std::size_t i = 0; i < kCount; ++i) {
    const auto own = expected.bytes().subspan(i * kShare, kShare);
    std::ranges::fill(own, std::byte{0});
    CHECK(puppets[i]->hash_of(targets[i]) == hash(expected.bytes()));
    fill(own, 100 + i);
  }
}

TEST_CASE("a peer that is gone before anybody speaks to it costs a deadline") {
  Node node;
  std::vector<std::byte> address;
  {
    Puppet puppet;
    address = puppet.address();
  }
  const Peer gone = node.connect(address);
  const TimePoint deadline = in(milliseconds(300));
  CHECK_FALSE(node.send(gone, "anybody?", deadline).status.has_value());
  CHECK(MonotonicClock::now() < deadline + std::chrono::seconds(1));
  Puppet next;
  CHECK(node.send(node.connect(next.address()), "you").status.has_value());
  CHECK(next.received(1) == 1);
}

TEST_CASE(
    "a peer that leaves in good order: what comes after is an error, what came before is not") {
  Node node;
  for (int i = 0; i < 3; ++i) {
    CAPTURE(i);
    Puppet puppet;
    const std::uint32_t us = puppet.connect(node.endpoint->info().address);
    CHECK(puppet.send(us, "hello " + std::to_string(i)) == 1);
    REQUIRE(node.has_received(static_cast<std::size_t>(i) + 1));
    const Peer peer = node.connect(puppet.address());
    CHECK(node.send(peer, "yes").status.has_value());
    CHECK(puppet.received(1) == 1);
    puppet.close_endpoint();
    CHECK_FALSE(node.send(peer, "anybody?", in(milliseconds(300))).status.has_value());
    node.disconnect(peer);
  }
}

// The end of the connection and what came over it before are seen in one go.
TEST_CASE("the last words of a peer that has left are heard, and harm nothing") {
  constexpr std::size_t kWords = 8;
  Node node;
  {
    Puppet puppet;
    const std::uint32_t us = puppet.connect(node.endpoint->info().address);
    CHECK(puppet.send(us, "hello") == 1);
    REQUIRE(node.has_received(1));
    Standstill standstill(node);
    for (std::size_t i = 0; i < kWords; ++i) CHECK(puppet.send(us, std::to_string(i)) == 1);
    puppet.leave();
  }
  CHECK(node.has_received(1 + kWords));
  Puppet next;
  CHECK(node.send(node.connect(next.address()), "you").status.has_value());
  CHECK(next.received(1) == 1);
}

TEST_CASE("T5: a peer killed with -9 costs its operations their deadline, nobody else anything") {
  constexpr int kCount = 20;
  Node node;
  Puppet dying, living;
  const std::uint32_t its = dying.allocate(kSize, 1), theirs = living.allocate(kSize, 2);
  const Peer to_dying = node.connect(dying.address()), to_living = node.connect(living.address());
  // What was asked of the dying one may still arrive while the provider has it.
  const RegisteredMemory here = node.memory(kSize), doomed = node.memory(kSize);
  REQUIRE(node.read(to_dying, {&doomed, 0, 4096}, dying.memory(its)).status.has_value());
  dying.signal(SIGSTOP);  // so that it dies with operations under way
  const TimePoint deadline = in(milliseconds(500));
  Tally tally;
  const auto begin = [&] {
    const std::string text(node.endpoint->info().max_message, 'x');
    for (int i = 0; i < kCount; ++i) {
      node.endpoint->write(to_dying, {&doomed, 0, kSize}, dying.memory(its), deadline,
                           tally.next());
      node.endpoint->read(to_dying, {&doomed, 0, kSize}, dying.memory(its), deadline, tally.next());
      node.endpoint->send(to_dying, std::as_bytes(std::span(text)), deadline, tally.next());
    }
    return 0;
  };
  node.on_thread(begin);
  dying.kill();
  node.on_thread(begin);
  REQUIRE(tally.all_ended());
  CHECK(tally.last() < deadline + std::chrono::seconds(5));
  CHECK(tally.twice() == 0);
  node.disconnect(to_dying);
  for (int i = 0; i < 3; ++i)
    CHECK(node.read(to_living, {&here, 0, kSize}, living.memory(theirs)).status.has_value());
  CHECK(hash(here.bytes()) == living.hash_of(theirs));
  CHECK(node.send(to_living, "still there").status.has_value());
  CHECK(living.received(1) == 1);
}

TEST_CASE("T6: a peer that restarts at the same address is reached again") {
  if (!fabric().has_ports()) return;  // a new process has a new address elsewhere
  Node node;
  std::uint16_t port = 0;
  const RegisteredMemory here = node.memory(kSize), doomed = node.memory(kSize);
  for (int life = 0; life < 3; ++life) {
    CAPTURE(life);
    Puppet puppet({.port = port});
    const std::string& printable = puppet.printable();
    const auto listens =
        static_cast<std::uint16_t>(std::stoi(printable.substr(printable.rfind(':') + 1)));
    if (port != 0) REQUIRE(listens == port);
    port = listens;
    const std::uint32_t theirs = puppet.allocate(kSize, 5 + static_cast<unsigned>(life));
    const Peer peer = node.connect(puppet.address());
    const Outcome outcome = node.read(peer, {&here, 0, kSize}, puppet.memory(theirs));
    REQUIRE_MESSAGE(outcome.status.has_value(), outcome.status.error().message);
    CHECK(hash(here.bytes()) == puppet.hash_of(theirs));
    CHECK(node.send(peer, "you again").status.has_value());
    CHECK(puppet.received(1) == 1);
    Tally tally;
    node.on_thread([&] {
      node.endpoint->read(peer, {&doomed, 0, kSize}, puppet.memory(theirs), in(milliseconds(500)),
                          tally.next());
      return 0;
    });
    if (life == 1)
      puppet.close_endpoint();
    else
      puppet.kill();
    CHECK(tally.all_ended());
    node.disconnect(peer);
  }
}

TEST_CASE("a process that stopped and goes on has lost nothing") {
  Node node;
  Puppet puppet;
  const std::uint32_t theirs = puppet.allocate(kSize, 3);
  const Peer peer = node.connect(puppet.address());
  const RegisteredMemory here = node.memory(kSize);
  REQUIRE(node.send(peer, "before").status.has_value());
  puppet.signal(SIGSTOP);
  Tally tally;
  node.on_thread([&] {
    for (int i = 0; i < 20; ++i) {
      const std::string text = std::to_string(i);
      node.endpoint->send(peer, std::as_bytes(std::span(text)), soon(), tally.next());
      node.endpoint->read(peer, {&here, 0, kSize}, puppet.memory(theirs), soon(), tally.next());
    }
    return 0;
  });
  for (int turn = 0; turn < 1000; ++turn) node.settle();  // its queues fill
  puppet.signal(SIGCONT);
  CHECK(tally.all_ended());
  CHECK_MESSAGE(tally.good() == 40, tally.first_error());
  CHECK(puppet.received(21) == 21);
  CHECK(puppet.hash_of(theirs) == hash(here.bytes()));
}

}  // namespace leeway::conformance
