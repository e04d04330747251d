// Choosing a fabric, the address to bind to, limits: what is refused, and how it is said.
#include "transport/providers.h"

#include <dlfcn.h>
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <random>

#include "tests/unit/transport/libfabric_tcp.h"
#include "transport/fabric_domain.h"
#include "transport/host_addresses.h"
#include "transport/host_memory.h"
#include "transport/signals.h"
#include "transport/timer_heap.h"

namespace leeway::transport {
namespace {

std::string refusal(const EndpointOptions& options) {
  try {
    const auto endpoint = Endpoint::open(options);
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    CHECK(text.find('\n') == std::string::npos);
    return text;
  }
  return "";
}

}  // namespace

TEST_CASE("F2: a fabric that is not there is named, with what was found and a remedy") {
  const std::string efa = refusal({.fabric = "efa"});
  CHECK(efa.find("fabric efa") != std::string::npos);
  CHECK(efa.find("found: tcp, shm") != std::string::npos);
  CHECK(efa.find("EFA device") != std::string::npos);
  CHECK(refusal({.fabric = "verbs"}).find("ibv_devinfo") != std::string::npos);
  CHECK(refusal({.fabric = "rocket"}).find("auto, efa, verbs, tcp or shm") != std::string::npos);
}

TEST_CASE("auto takes the best that reaches other hosts, and shared memory beside it") {
  // Where there is better than tcp, the machine's tests say so.
  const char* const bind = std::getenv("TEST_BIND");
  const char* const best = std::getenv("TEST_FABRIC");
  const auto endpoint = Endpoint::open({.bind = bind != nullptr ? bind : EndpointOptions{}.bind});
  REQUIRE(endpoint->info().rails.size() == 2);
  CHECK(endpoint->info().fabric == (best != nullptr ? best : "tcp"));
  CHECK(endpoint->info().rails[1].fabric == "shm");
}

TEST_CASE("T1: an address that is not ours is refused by name, ours is honoured") {
  const std::string text = refusal({.fabric = "tcp", .bind = "203.0.113.9"});
  CHECK(text.find("203.0.113.9") != std::string::npos);
  CHECK(text.find("127.0.0.1") != std::string::npos);
  CHECK_FALSE(refusal({.fabric = "tcp", .bind = "0.0.0.0"}).empty());
  CHECK_FALSE(refusal({.fabric = "tcp", .bind = "no.such.host.invalid"}).empty());
  const auto endpoint = Endpoint::open({.fabric = "tcp", .bind = "127.0.0.1"});
  CHECK(endpoint->info().printable.find("127.0.0.1:") != std::string::npos);
}

TEST_CASE("the table: every family has a remedy, and the strict memory modes run over TCP") {
  for (const ProviderTraits& traits : provider_table()) CHECK_FALSE(traits.remedy.empty());
  const auto domain = std::make_shared<FabricDomain>(
      choose_provider(testing::kLibfabricTcp, {.address = "127.0.0.1"}));
  CHECK(domain->virtual_addresses);
  CHECK(domain->provider_keys);
  const auto memory = value_or_throw(HostMemory::make(4096, HostMemory::Kind::kPrivate));
  const auto registration =
      value_or_throw(FabricRegistration::make(domain, memory.view(), Access::kPeers));
  CHECK(registration->window().address == reinterpret_cast<std::uintptr_t>(memory.bytes().data()));
}

TEST_CASE("T3: too little memory to lock names bytes, limit and remedy") {
  const std::string text = locked_memory_problem(1 << 20, 32 << 10, 64 << 10, false);
  CHECK(text.find("1048576 bytes") != std::string::npos);
  CHECK(text.find("32 KiB are locked already") != std::string::npos);
  CHECK(text.find("`ulimit -l` is 64 KiB") != std::string::npos);
  CHECK(text.find("ulimit -l unlimited") != std::string::npos);
  CHECK(locked_memory_problem(1 << 20, 0, RLIM_INFINITY, false).empty());
  CHECK(locked_memory_problem(1 << 20, 0, 64 << 10, true).empty());
  CHECK(locked_memory_problem(64 << 10, 0, 64 << 10, false).empty());
  CHECK_FALSE(locked_memory_problem(1, 64 << 10, 64 << 10, false).empty());
  CHECK_FALSE(locked_memory_problem(SIZE_MAX, 1, 64 << 10, false).empty());
}

TEST_CASE("opening a fabric leaves the program's signals alone") {
  const auto handler_of = [](int number) {
    struct sigaction action {};
    sigaction(number, nullptr, &action);
    return action.sa_handler;
  };
  const auto ours = [](int) {};
  const auto before = std::signal(SIGTERM, ours);
  { const auto endpoint = Endpoint::open({.fabric = "tcp"}); }
  CHECK((handler_of(SIGTERM) == static_cast<void (*)(int)>(ours)));
  std::signal(SIGTERM, before);
  take_back_signals();
  // Nobody else here takes this one, so what a fabric library did to it before main() is undone.
  Dl_info where{};
  if (dladdr(reinterpret_cast<void*>(handler_of(SIGBUS)), &where) != 0)
    CHECK(std::string(where.dli_fname).find("infinipath") == std::string::npos);
}

TEST_CASE("timers leave the heap in order of time, and any can be taken out") {
  struct Plain final : Timer {
    void expire() override {}
  };
  std::mt19937 random(7);
  std::vector<Plain> timers(500);
  TimerHeap heap;
  for (Plain& timer : timers) {
    timer.when = TimePoint(std::chrono::milliseconds(random() % 1000));
    heap.add(timer);
  }
  std::size_t left = timers.size();
  for (std::size_t i = 0; i < timers.size(); i += 3, --left) {
    heap.remove(timers[i]);
    heap.remove(timers[i]);  // not there: nothing happens
  }
  TimePoint last{};
  bool ordered = true;
  for (Timer* timer = heap.soonest(); timer != nullptr; timer = heap.soonest(), --left) {
    ordered &= timer->when >= last;
    last = timer->when;
    heap.remove(*timer);
    CHECK(timer->place == Timer::kNowhere);
  }
  CHECK(ordered);
  CHECK(left == 0);
}

}  // namespace leeway::transport
