// Peers that are wrong on purpose: keys, addresses and bytes that nobody should believe. They cost
// their own connection alone.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <random>

#include "tests/conformance/node.h"

namespace leeway::conformance {
namespace {

// Transfers between two endpoints, one after the other, from construction to end().
class Traffic {
 public:
  Traffic(Node& from, Node& to)
      : from_(from), peer_(from.connect(to)), here_(from.memory(kSize)), there_(to.memory(kSize)) {
    fill(here_, 5);
    from_.endpoint->post([this] { next(); });
  }
  ~Traffic() { end(); }
  // Waits for more to go through.
  bool goes_on() {
    const std::uint64_t seen = good_;
    const TimePoint until = soon();
    while (good_ < seen + 5 && MonotonicClock::now() < until) std::this_thread::yield();
    return good_ >= seen + 5;
  }
  void end() {
    if (ended_) return;
    ended_ = true;
    stop_ = true;
    over_.get_future().wait();
  }
  std::uint64_t failed() const { return failed_; }

 private:
  static constexpr std::size_t kSize = 50'000;

  void next() {
    if (stop_) return over_.set_value();
    const auto done = [this](const Outcome& outcome) {
      ++(outcome.status ? good_ : failed_);
      next();
    };
    if (++turn_ % 2 == 0)
      from_.endpoint->write(peer_, {&here_, 0, kSize}, at(there_), soon(), done);
    else
      from_.endpoint->read(peer_, {&here_, 0, kSize}, at(there_), soon(), done);
  }

  Node& from_;
  Peer peer_;
  RegisteredMemory here_, there_;
  std::uint64_t turn_ = 0;
  std::atomic<std::uint64_t> good_ = 0, failed_ = 0;
  std::atomic<bool> stop_ = false;
  bool ended_ = false;
  std::promise<void> over_;
};

}  // namespace

TEST_CASE("a wrong key or place ends in an error, in bounded time, and costs nobody else") {
  Node victim, c;
  const RegisteredMemory there = victim.memory(8192);
  fill(there, 1);
  const std::uint64_t before = hash(there.bytes());
  Traffic traffic(c, victim);
  const Window window = there.remote()->front();
  struct Wrong {
    const char* what;
    Window window;
    std::uint64_t offset;
    bool bounded;  // every fabric notices
  };
  const Wrong wrongs[] = {
      {"another key", {window.address, window.key + 12345}, 0, true},
      {"no key", {window.address, 0}, 0, true},
      {"far outside", window, std::uint64_t{1} << 40, true},
      {"at the end of all memory", window, UINT64_MAX - 100, true},
      {"partly outside", window, 8192 - 100, false},
      {"just outside", window, 8192, false},
  };
  for (const Wrong& wrong : wrongs)
    for (const bool write : {true, false}) {
      CAPTURE(wrong.what);
      CAPTURE(write);
      Node attacker;
      const Peer peer = attacker.connect(victim);
      const RegisteredMemory here = attacker.memory(4096);
      const RemoteRange range{at_window(wrong.window).memory, wrong.offset};
      const TimePoint deadline = in(milliseconds(500));
      const Outcome outcome = write ? attacker.write(peer, {&here, 0, 4096}, range, deadline)
                                    : attacker.read(peer, {&here, 0, 4096}, range, deadline);
      CHECK(MonotonicClock::now() < deadline + std::chrono::seconds(2));
      // A memory is whole pages, and some fabrics guard no finer than that.
      if (wrong.bounded) CHECK_FALSE(outcome.status.has_value());
      if (wrong.bounded) CHECK(hash(there.bytes()) == before);
      fill(there, 1);
      CHECK(traffic.goes_on());
    }
  traffic.end();
  CHECK(traffic.failed() == 0);
  // And somebody new is served.
  Node fresh;
  const RegisteredMemory here = fresh.memory(8192);
  REQUIRE(fresh.read(fresh.connect(victim), {&here, 0, 8192}, at(there)).status.has_value());
  CHECK(same(here, there));
}

TEST_CASE("memory that is gone is gone for peers, and nobody else notices") {
  Node victim, c, late;
  Traffic traffic(c, victim);
  const Peer peer = late.connect(victim);
  const RegisteredMemory here = late.memory(4096);
  RemoteRange range;
  {
    const RegisteredMemory there = victim.memory(4096);
    range = at(there);
    CHECK(late.read(peer, {&here, 0, 4096}, range).status.has_value());
  }
  // A peer that has it mapped already has to be told first; what it reads meanwhile is nobody's.
  const TimePoint until = in(milliseconds(2000));
  Outcome outcome;
  do outcome = late.read(peer, {&here, 0, 4096}, range, in(milliseconds(500)));
  while (outcome.status && MonotonicClock::now() < until);
  CHECK_FALSE(outcome.status.has_value());
  CHECK(traffic.goes_on());
  traffic.end();
  CHECK(traffic.failed() == 0);
}

TEST_CASE("random bytes as an address are refused or lead nowhere") {
  Node a, b;
  const Peer to_b = a.connect(b);
  std::mt19937_64 random(fabric().seed);
  const std::vector<std::byte>& good = b.endpoint->info().address;
  for (int i = 0; i < 200; ++i) {
    std::vector<std::byte> bytes = good;
    switch (i % 3) {
      case 0:
        bytes[random() % bytes.size()] ^= static_cast<std::byte>(1 + random() % 255);
        break;
      case 1:
        bytes.resize(random() % (2 * good.size()));
        break;
      default:
        for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    }
    a.on_thread([&] {
      // Bytes that happen to be an address are taken; nothing is sent there.
      if (const auto peer = a.endpoint->connect(bytes); peer && bytes != good)
        a.endpoint->disconnect(*peer);
      return 0;
    });
  }
  CHECK(a.send(to_b, "still").status.has_value());
}

TEST_CASE("bytes of somebody who speaks no such protocol, at the port of the endpoint") {
  if (fabric().name != "tcp") return;  // the others have no port that anybody can reach
  Node victim, c;
  Traffic traffic(c, victim);
  const std::string printable = victim.endpoint->info().printable;
  const int port = std::atoi(printable.c_str() + printable.rfind(':') + 1);
  std::mt19937_64 random(fabric().seed);
  for (int i = 0; i < 30; ++i) {
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    inet_pton(AF_INET, fabric().bind.c_str(), &address.sin_addr);
    REQUIRE(::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    std::vector<char> bytes(random() % 5000);
    for (char& byte : bytes) byte = static_cast<char>(i % 2 == 0 ? random() : 0);
    (void)::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (i % 3 == 0) CHECK(traffic.goes_on());
    close(socket);
  }
  CHECK(traffic.goes_on());
  traffic.end();
  CHECK(traffic.failed() == 0);
  Node fresh;
  CHECK(fresh.send(fresh.connect(victim), "hello").status.has_value());
  CHECK(victim.has_received(1));
}

}  // namespace leeway::conformance
