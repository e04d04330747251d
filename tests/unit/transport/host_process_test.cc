// The rail between processes of one host: peers that are killed and stopped.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <random>

#include "tests/unit/transport/host_child.h"
#include "tests/unit/transport/host_fixture.h"

namespace leeway::transport::testing {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST_SUITE_BEGIN("host_rail");

TEST_CASE("host rail: two processes") {
  HostNode node;
  const HostShared memory(node, kHostChildMemory);
  const HostChild child(HostChild::Role::kEcho, node, memory.window());
  const RailPeer peer = node.connect(child.address());
  node.send(peer, "hello");
  REQUIRE(until([&] { return node.messages.size() == 1; }, node));
  CHECK(node.messages[0] == "hello");
  std::vector<std::byte> here(kHostChildMemory);
  const auto read = node.read(peer, here, child.memory());
  REQUIRE(until([&] { return node.is_done(read); }, node));
  CHECK(node.outcome(read));
  CHECK(std::ranges::all_of(here, [](std::byte b) { return b == std::byte{77}; }));
  fill(here, 3);
  const auto written = node.write(peer, here, child.memory());
  REQUIRE(until([&] { return node.is_done(written); }, node));
  std::vector<std::byte> again(kHostChildMemory);
  const auto checked = node.read(peer, again, child.memory());
  REQUIRE(until([&] { return node.is_done(checked); }, node));
  CHECK(again == here);
  // Nothing that has a name, and could stay behind.
  std::ifstream maps("/proc/" + std::to_string(child.process()) + "/maps");
  for (std::string line; std::getline(maps, line);) CHECK(line.find("/dev/shm") == line.npos);
}

TEST_CASE("host rail: a peer that dies in the middle of a read, a write and messages") {
  HostNode node;
  const HostShared memory(node, kHostChildMemory);
  constexpr std::size_t kSize = 16 * kMiB;
  HostChild child(HostChild::Role::kEcho, node, memory.window(), kSize);
  const pid_t process = child.process();
  const RailPeer peer = node.connect(child.address());
  std::vector<std::byte> here(kSize);
  const auto first = node.read(peer, std::span(here).first(1), child.memory());
  REQUIRE(until([&] { return node.is_done(first); }, node));
  child.signal(SIGSTOP);  // so that it does not answer
  waitid(P_PID, static_cast<id_t>(child.process()), nullptr, WSTOPPED | WNOWAIT);
  const auto read = node.read(peer, here, child.memory());
  const auto write = node.write(peer, here, child.memory());
  const auto asked = node.read(peer, here, {0, child.memory().key + 1});
  node.poll();
  REQUIRE(!node.is_done(read));
  child.kill();
  const TimePoint died = MonotonicClock::now();
  REQUIRE(until([&] { return node.is_done(read) && node.is_done(write) && node.is_done(asked); },
                node));
  CHECK(MonotonicClock::now() - died < milliseconds(5000));
  for (const auto ticket : {read, write, asked}) {
    REQUIRE(!node.outcome(ticket));
    CHECK(node.outcome(ticket).error().code == Code::kUnavailable);
    CHECK(node.outcome(ticket).error().message.find("process " + std::to_string(process)) !=
          std::string::npos);
  }
  const auto posted = node.rail->send(peer, {}, node.new_ticket());
  REQUIRE(!posted);
  CHECK(posted.error().code == Code::kUnavailable);
  CHECK(node.each_at_most_once());
}

TEST_CASE("host rail: the death of a peer wakes who sleeps") {
  HostNode node;
  const HostShared memory(node, kHostChildMemory);
  HostChild child(HostChild::Role::kEcho, node, memory.window());
  const RailPeer peer = node.connect(child.address());
  child.signal(SIGSTOP);
  std::byte here{};
  const auto read = node.read(peer, {&here, 1}, {0, 12345});  // waits for an answer
  settle(node);
  child.kill();
  CHECK(readable(node));
  node.rail->disarm();
  REQUIRE(until([&] { return node.is_done(read); }, node));
  CHECK(!node.outcome(read));
}

TEST_CASE(
    "host rail: a stopped peer's memory is read and written, its ring fills, and it goes on") {
  HostNode node;
  const HostShared memory(node, kHostChildMemory);
  const HostChild child(HostChild::Role::kEcho, node, memory.window());
  const RailPeer peer = node.connect(child.address());
  std::vector<std::byte> here(kHostChildMemory);
  const auto first = node.read(peer, std::span(here).first(1), child.memory());
  REQUIRE(until([&] { return node.is_done(first); }, node));
  child.signal(SIGSTOP);
  waitid(P_PID, static_cast<id_t>(child.process()), nullptr, WSTOPPED | WNOWAIT);
  const auto read = node.read(peer, here, child.memory());
  const auto write = node.write(peer, here, child.memory());
  REQUIRE(until([&] { return node.is_done(read) && node.is_done(write); }, node));
  CHECK(node.outcome(read));
  CHECK(node.outcome(write));
  const std::string text(8192, 'x');
  std::size_t taken = 0;
  while (*node.rail->send(peer, std::as_bytes(std::span(text)), node.new_ticket()) ==
         Rail::Post::kTaken)
    ++taken;
  CHECK(taken > 20);
  settle(node);
  child.signal(SIGCONT);
  CHECK(readable(node));
  REQUIRE(until([&] { return node.messages.size() == taken; }, node));
}

TEST_CASE("host rail: cycles of connecting and being killed leave nothing behind") {
  constexpr int kCycles = 200;
  const unsigned seed = 20261202;
  CAPTURE(seed);
  std::mt19937 random(seed);
  HostNode node;
  const HostShared memory(node, kHostChildMemory);
  const std::size_t descriptors = open_descriptors(), mappings = shared_mappings();
  for (int cycle = 0; cycle < kCycles; ++cycle) {
    CAPTURE(cycle);
    HostChild child(cycle % 2 == 0 ? HostChild::Role::kFlood : HostChild::Role::kEcho, node,
                    memory.window());
    const RailPeer peer = node.connect(child.address());
    std::vector<std::byte> here(kHostChildMemory);
    const auto read = node.read(peer, here, child.memory());
    const auto write = node.write(peer, here, child.memory());
    const std::string text(700, 'f');
    const int polls = static_cast<int>(random() % 300);
    for (int i = 0; i < polls; ++i) {
      if (const auto posted =
              node.rail->send(peer, std::as_bytes(std::span(text)), node.new_ticket());
          !posted)
        break;
      node.poll();
    }
    child.kill();
    REQUIRE(until([&] { return node.is_done(read) && node.is_done(write); }, node));
    node.rail->disconnect(peer);
    REQUIRE(until([&] { return shared_mappings() == mappings; }, node));
    for (const std::string& message : node.messages)
      REQUIRE(message == std::string(message.size(), 'f'));
    node.messages.clear();
  }
  REQUIRE(until([&] { return open_descriptors() <= descriptors; }, node));
  CHECK(node.each_at_most_once());
}

// The middle one, in microseconds, and the best tenth.
std::string microseconds(std::vector<double> seconds) {
  std::ranges::sort(seconds);
  return fmt::format("{:.2f} us (best tenth {:.2f})", seconds[seconds.size() / 2] * 1e6,
                     seconds[seconds.size() / 10] * 1e6);
}

TEST_CASE("host rail figures" * doctest::skip()) {
  constexpr std::size_t kSize = 128 * kMiB;
  HostNode node;
  const HostShared memory(node, kHostChildMemory);
  const HostChild child(HostChild::Role::kSpin, node, memory.window(), kSize);
  const HostChild sleeper(HostChild::Role::kEcho, node, memory.window());
  const RailPeer peer = node.connect(child.address());
  const auto since = [](TimePoint from) { return seconds_between(from, MonotonicClock::now()); };
  const auto round_trip = [&](RailPeer to, std::size_t bytes) {
    node.messages.clear();
    const std::string text(bytes, 'x');
    const TimePoint start = MonotonicClock::now();
    node.send(to, text);
    while (node.messages.empty()) node.poll();
    return since(start);
  };
  for (const std::size_t bytes : {64, 1024, 8192}) {
    std::vector<double> trips;
    for (int i = 0; i < 20000; ++i) trips.push_back(round_trip(peer, bytes));
    MESSAGE(fmt::format("round trip of {} B: {}", bytes, microseconds(trips)));
  }
  const HostMemory own = value_or_throw(HostMemory::make(kSize, HostMemory::Kind::kShareable));
  for (const std::size_t size : {std::size_t{4096}, kMiB, 4 * kMiB}) {
    for (const bool read : {true, false}) {
      std::vector<double> took;
      for (std::size_t i = 0; i < 4 * kSize / (4 * kMiB); ++i) {
        const std::size_t at = i * size % kSize;
        const TimePoint start = MonotonicClock::now();
        const Window window{at, child.memory().key};
        const auto ticket = read ? node.read(peer, own.bytes().subspan(at, size), window)
                                 : node.write(peer, own.bytes().subspan(at, size), window);
        while (!node.is_done(ticket)) node.poll();
        took.push_back(since(start));
      }
      std::ranges::sort(took);
      MESSAGE(fmt::format("{} of {} B: {:.1f} GB/s, {}", read ? "read" : "write", size,
                          static_cast<double>(size) / took[took.size() / 2] / 1e9,
                          microseconds(took)));
    }
  }
  std::vector<double> trips;
  const RailPeer to_sleeper = node.connect(sleeper.address());
  for (int i = 0; i < 200; ++i) {
    usleep(1000);
    trips.push_back(round_trip(to_sleeper, 64));
  }
  MESSAGE(fmt::format("round trip to one that sleeps: {}", microseconds(trips)));
}

TEST_SUITE_END();

}  // namespace
}  // namespace leeway::transport::testing
