// kill -9 of a peer at each point of a transfer, started from either side. The survivor knows
// within its deadline, goes on with others, and keeps nothing of the dead.
#include <doctest/doctest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <optional>
#include <thread>

#include "tests/conformance/puppet.h"
#include "tests/fault/process_state.h"

namespace leeway::fault {
namespace {

using namespace conformance;

constexpr std::size_t kSize = std::size_t{16} << 20;
constexpr std::size_t kMiddle = kSize / 2;
constexpr milliseconds kDeadline{1000};
// A loaded machine may be late by that.
constexpr milliseconds kSlack{2000};

// Full memories hold the bytes of this seed; the first of them after the middle that is not 0.
constexpr std::uint64_t kSeed = 77;
std::size_t watched_place() {
  static const std::size_t place = [] {
    std::vector<std::byte> bytes(kSize);
    fill(std::span(bytes), kSeed);
    return static_cast<std::size_t>(
        std::find_if(bytes.begin() + kMiddle, bytes.end(),
                     [](std::byte byte) { return byte != std::byte{0}; }) -
        bytes.begin());
  }();
  return place;
}

// A survivor (we) and a victim (a puppet), each with a full memory and an empty one.
class Scene {
 public:
  explicit Scene(Node& node)
      : node_(node),
        full_(node.memory(kSize)),
        empty_(node.memory(kSize)),
        full_there_(victim.allocate(kSize, kSeed)),
        empty_there_(victim.allocate(kSize, 0)) {
    fill(full_, kSeed);
  }

  void connect() { peer_ = node_.connect(victim.address()); }
  void they_connect() { us_ = victim.connect(node_.endpoint->info().address); }

  // Ours.
  void begin_send(int times = 1) {
    node_.on_thread([&] {
      for (int i = 0; i < times; ++i)
        node_.endpoint->send(*peer_, std::as_bytes(std::span("ours")), in(kDeadline), tally.next());
      return 0;
    });
  }
  void begin_read(int times = 1) {
    node_.on_thread([&] {
      for (int i = 0; i < times; ++i)
        node_.endpoint->read(*peer_, {&empty_, 0, kSize}, victim.memory(full_there_), in(kDeadline),
                             tally.next());
      return 0;
    });
  }
  void begin_write(int times = 1) {
    node_.on_thread([&] {
      for (int i = 0; i < times; ++i)
        node_.endpoint->write(*peer_, {&full_, 0, kSize}, victim.memory(empty_there_),
                              in(kDeadline), tally.next());
      return 0;
    });
  }
  void read() {
    CHECK(node_.read(*peer_, {&empty_, 0, kSize}, victim.memory(full_there_)).status.has_value());
  }
  void write() {
    CHECK(node_.write(*peer_, {&full_, 0, kSize}, victim.memory(empty_there_)).status.has_value());
  }

  // The victim's.
  void they_send(std::uint32_t times = 1, bool wait = true) {
    victim.send(us_, "theirs", times, wait);
  }
  void they_read(bool wait) {
    victim.transfer(
        {.peer = us_, .memory = empty_there_, .size = kSize, .remote = at(full_), .wait = wait});
  }
  void they_die_reading() {
    victim.die_transferring(
        {.peer = us_, .memory = empty_there_, .size = kSize, .remote = at(full_), .wait = false});
  }
  void they_write(bool wait) {
    victim.transfer({.peer = us_,
                     .memory = full_there_,
                     .size = kSize,
                     .remote = at(empty_),
                     .write = true,
                     .wait = wait});
  }

  // Until the bytes that come into our memory have passed its middle.
  void await_middle() const {
    const volatile std::byte* byte = empty_.bytes().data() + watched_place();
    const TimePoint until = soon();
    while (*byte == std::byte{0} && MonotonicClock::now() < until) std::this_thread::yield();
    CHECK(*byte != std::byte{0});
  }
  // By its own hand, once the bytes that come into its memory have passed the middle.
  void dies_in_the_middle() { victim.die_when_touched(empty_there_, watched_place()); }

  // After the victim's end: nothing is left pending, and what begins now ends as well.
  void check_endings() {
    if (!peer_) connect();
    begin_read();
    begin_write();
    begin_send();
    const TimePoint latest = in(kDeadline + kSlack);
    CHECK(tally.all_ended());
    CHECK(tally.last() < latest);
    CHECK(tally.twice() == 0);
    node_.disconnect(*peer_);
  }

  Puppet victim;
  Tally tally;

 private:
  Node& node_;
  RegisteredMemory full_, empty_;
  std::uint32_t full_there_, empty_there_;
  std::optional<Peer> peer_;
  std::uint32_t us_ = 0;
};

struct Point {
  const char* when;
  std::function<void(Scene&)> reach;  // the kill follows, where it isn't part of it
};

const Point kPoints[] = {
    {"before anybody connected", [](Scene&) {}},
    {"after we connected", [](Scene& s) { s.connect(); }},
    {"after it connected", [](Scene& s) { s.they_connect(); }},
    {"after its message, before our read",
     [](Scene& s) {
       s.they_connect();
       s.they_send();
       s.connect();
     }},
    {"our read begun, nothing moves",
     [](Scene& s) {
       s.connect();
       s.victim.stand_still();
       s.begin_read();
     }},
    {"in the middle of our read",
     [](Scene& s) {
       s.connect();
       s.begin_read();
       s.await_middle();
     }},
    {"after our read, before our message",
     [](Scene& s) {
       s.connect();
       s.read();
     }},
    {"our message sent and not seen",
     [](Scene& s) {
       s.connect();
       s.victim.stand_still();
       s.begin_send();
     }},
    {"in the middle of our write",
     [](Scene& s) {
       s.connect();
       s.dies_in_the_middle();
       s.begin_write();
       s.victim.wait_for_end();
     }},
    {"between our write and our message",
     [](Scene& s) {
       s.connect();
       s.write();
     }},
    {"our message right behind our write",
     [](Scene& s) {
       s.connect();
       s.begin_write();
       s.begin_send();
     }},
    {"after a whole exchange",
     [](Scene& s) {
       s.connect();
       s.they_connect();
       s.they_send();
       s.read();
       s.write();
       s.they_read(true);
       s.they_write(true);
     }},
    {"while it closes",
     [](Scene& s) {
       s.connect();
       s.read();
       s.begin_write();
       s.victim.die_while_closing();
     }},
    {"its read of our memory begun",
     [](Scene& s) {
       s.they_connect();
       s.they_read(false);
     }},
    {"in the middle of its read",
     [](Scene& s) {
       s.they_connect();
       s.dies_in_the_middle();
       s.they_die_reading();
     }},
    {"in the middle of its write",
     [](Scene& s) {
       s.they_connect();
       s.they_write(false);
       s.await_middle();
     }},
    {"between its write and its message",
     [](Scene& s) {
       s.they_connect();
       s.they_write(true);
     }},
    {"a burst of its messages on the way",
     [](Scene& s) {
       s.they_connect();
       s.they_send(500, false);
     }},
    {"a burst of our messages on the way",
     [](Scene& s) {
       s.connect();
       s.begin_send(500);
     }},
    {"reads and writes both ways",
     [](Scene& s) {
       s.connect();
       s.they_connect();
       s.they_write(false);
       s.they_read(false);
       s.begin_read(3);
       s.begin_write(3);
       s.await_middle();
     }},
    {"stopped, with much under way",
     [](Scene& s) {
       s.connect();
       s.they_connect();
       s.victim.signal(SIGSTOP);
       s.begin_write(5);
       s.begin_read(5);
       s.begin_send(20);
     }},
    {"while both reach for each other",
     [](Scene& s) {
       std::jthread other([&] {
         s.they_connect();
         s.they_send(1, false);
       });
       s.connect();
       s.begin_send();
     }},
};

// True when it becomes true soon.
template <typename Condition>
bool eventually(Condition condition) {
  const TimePoint until = in(milliseconds(5000));
  while (!condition()) {
    if (MonotonicClock::now() > until) return false;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return true;
}

}  // namespace

TEST_CASE("T5: a peer killed with -9 at any point costs a deadline and leaves nothing") {
  Node node;
  Puppet bystander;
  const std::uint32_t theirs = bystander.allocate(1 << 20, 5);
  const Peer to_bystander = node.connect(bystander.address());
  const RegisteredMemory here = node.memory(1 << 20);
  const auto bystander_served = [&] {
    return node.read(to_bystander, {&here, 0, 1 << 20}, bystander.memory(theirs)).status &&
           node.write(to_bystander, {&here, 0, 1 << 20}, bystander.memory(theirs)).status &&
           node.send(to_bystander, "and you?").status;
  };
  REQUIRE(bystander_served());
  const pid_t us = getpid();
  std::size_t descriptors = 0, threads = 0, resident = 0;
  for (std::size_t i = 0; i < std::size(kPoints); ++i) {
    const Point& point = kPoints[i];
    INFO(std::string(point.when));
    pid_t dead = 0;
    {
      Scene scene(node);
      dead = scene.victim.pid();
      point.reach(scene);
      scene.victim.kill();
      scene.check_endings();
    }
    CHECK(bystander_served());
    // Nobody spins: a tenth of a second with nothing to do.
    const double cpu = own_cpu_seconds();
    std::this_thread::sleep_for(milliseconds(100));
    CHECK(own_cpu_seconds() - cpu < 0.05);
    CHECK(shm_segments_of(dead) == 0);
    if (i == 0) {  // what stays, stays once
      descriptors = descriptors_of(us);
      threads = threads_of(us);
      resident = resident_kib(us);
    }
    CHECK_MESSAGE(eventually([&] { return descriptors_of(us) <= descriptors; }), descriptors_of(us),
                  " descriptors, ", descriptors, " before");
    CHECK(eventually([&] { return threads_of(us) <= threads; }));
  }
  CHECK_MESSAGE(resident_kib(us) < resident + (std::size_t{96} << 10), resident_kib(us), " KiB, ",
                resident, " KiB after the first");
}

// The survivor has 64 descriptors in all.
TEST_CASE("T8: 200 times connect and kill: the survivor's descriptors stay as many") {
  constexpr int kTimes = 200;
  Puppet survivor({.open_files = 64});
  const std::uint32_t memory = survivor.allocate(1 << 16, 0);
  std::size_t most = 0, after_ten = 0;
  for (int i = 0; i < kTimes; ++i) {
    Puppet victim;
    const std::uint32_t theirs = victim.allocate(1 << 16, kSeed);
    const std::uint32_t peer = survivor.connect(victim.address());
    const std::uint32_t back = victim.connect(survivor.address());
    REQUIRE(victim.send(back, "hello") == 1);
    REQUIRE(
        survivor.transfer(
            {.peer = peer, .memory = memory, .size = 1 << 16, .remote = victim.memory(theirs)}) ==
        1);
    victim.kill();
    survivor.disconnect(peer);
    const std::size_t now = descriptors_of(survivor.pid());
    if (i == 10) after_ten = now;
    most = std::max(most, now);
  }
  CHECK(most < 64);
  CHECK_MESSAGE(eventually([&] { return descriptors_of(survivor.pid()) <= after_ten; }),
                descriptors_of(survivor.pid()), " descriptors, ", after_ten, " after ten");
}

// In a mount namespace of this thread and its children.
TEST_CASE("Y2: with 64 MiB of /dev/shm, 50 kills leave nothing there") {
  REQUIRE_MESSAGE(unshare(CLONE_NEWNS) == 0, "a mount namespace: run this as root");
  REQUIRE(mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0);
  REQUIRE(mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=64m") == 0);
  Node node;
  const RegisteredMemory here = node.memory(kSize);
  for (int i = 0; i < 50; ++i) {
    Puppet victim;
    const std::uint32_t theirs = victim.allocate(kSize, kSeed);
    const Peer peer = node.connect(victim.address());
    REQUIRE(node.read(peer, {&here, 0, kSize}, victim.memory(theirs)).status.has_value());
    victim.kill();
    node.disconnect(peer);
  }
  CHECK(count_entries("/dev/shm") == 0);
}

}  // namespace leeway::fault
