// What only happens between hosts: cables that are pulled, addresses that lead nowhere.
#include "tests/conformance/two_hosts.h"

#include <doctest/doctest.h>

#include "tests/conformance/puppet.h"

namespace leeway::conformance {
namespace {

// Other addresses, until the end of the scope.
class Addresses {
 public:
  Addresses(const char* here, const char* there) : before_(fabric()) {
    Fabric changed = before_;
    changed.bind = here;
    changed.other_bind = there;
    choose_fabric(changed);
  }
  ~Addresses() { choose_fabric(before_); }

 private:
  Fabric before_;
};

}  // namespace

TEST_CASE(
    "a cable pulled in the middle of a transfer costs a deadline, and plugged in all goes on") {
  if (two_hosts() == nullptr) return;
  constexpr std::size_t kSize = std::size_t{64} << 20;
  Node node;
  Puppet puppet;
  const std::uint32_t theirs = puppet.allocate(kSize, 3);
  const Peer peer = node.connect(puppet.address());
  const RegisteredMemory here = node.memory(kSize), expected = node.memory(kSize);
  fill(expected, 3);
  REQUIRE(node.send(peer, "before").status.has_value());
  const TimePoint deadline = in(milliseconds(1500));
  Tally tally;
  node.on_thread([&] {
    for (int i = 0; i < 4; ++i) {
      node.endpoint->read(peer, {&here, 0, kSize}, puppet.memory(theirs), deadline, tally.next());
      node.endpoint->write(peer, {&expected, 0, kSize}, puppet.memory(theirs), deadline,
                           tally.next());
      node.endpoint->send(peer, std::as_bytes(std::span("x")), deadline, tally.next());
    }
    return 0;
  });
  const std::byte* const first = here.bytes().data();  // one of them may be 0 when it has come
  const TimePoint until = soon();
  while (!is_touched(first) && !is_touched(first + 1) && MonotonicClock::now() < until) {
  }
  two_hosts()->pull_cable();
  CHECK(tally.all_ended());
  CHECK(tally.good() < tally.begun());
  CHECK(tally.last() < deadline + std::chrono::seconds(2));
  CHECK_FALSE(node.send(peer, "nobody hears that", in(milliseconds(300))).status.has_value());
  two_hosts()->plug_cable();
  node.disconnect(peer);
  const Peer again = node.connect(puppet.address());
  const RegisteredMemory fresh = node.memory(kSize);
  const Outcome outcome = node.read(again, {&fresh, 0, kSize}, puppet.memory(theirs));
  CHECK_MESSAGE(outcome.status.has_value(), outcome.status.error().message);
  CHECK(same(fresh, expected));
  CHECK(node.send(again, "after").status.has_value());
  CHECK(puppet.received(2) >= 2);
}

TEST_CASE("T1: an interface with two addresses: the one that is given is used") {
  if (two_hosts() == nullptr) return;
  for (const int i : {0, 1}) {
    const Addresses addresses(TwoHosts::kHere[i], TwoHosts::kThere[i]);
    Node node;
    Puppet puppet;
    CHECK(node.endpoint->info().printable.find(TwoHosts::kHere[i]) != std::string::npos);
    CHECK(puppet.printable().find(TwoHosts::kThere[i]) != std::string::npos);
    CHECK(node.send(node.connect(puppet.address()), "there").status.has_value());
    CHECK(puppet.send(puppet.connect(node.endpoint->info().address), "and back") == 1);
    CHECK(node.has_received(1));
  }
}

TEST_CASE("T1: an address of an interface that leads nowhere is named within the deadline") {
  if (two_hosts() == nullptr) return;
  const Addresses addresses(TwoHosts::kHere[0], TwoHosts::kNowhereThere);
  Node node;
  Puppet unreachable;
  const Peer peer = node.connect(unreachable.address());
  const TimePoint deadline = in(milliseconds(1000));
  const Outcome outcome = node.send(peer, "anybody?", deadline);
  CHECK(MonotonicClock::now() < deadline + std::chrono::seconds(2));
  REQUIRE_FALSE(outcome.status.has_value());
  CHECK_MESSAGE(outcome.status.error().message.find(TwoHosts::kNowhereThere) != std::string::npos,
                outcome.status.error().message);
}

}  // namespace leeway::conformance
