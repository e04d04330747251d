#include "tests/bench/latency_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/bench/peer_process.h"
#include "tests/bench/pushpull_job.h"
#include "tests/bench/raw_fabric.h"
#include "tests/bench/socket_echo.h"
#include "tests/bench/summary.h"

namespace leeway::bench {
namespace {

constexpr std::size_t kElements = 4;  // 8 bytes of FP16
// So many that the scheduler has time to give the two ends a core each.
constexpr std::size_t kSpinning = 10000, kSleeping = 20;
constexpr milliseconds kPause{20};
constexpr std::chrono::seconds kIdle{2};
constexpr double kIdleLimit = 2;  // percent of a core
constexpr std::size_t kRawMemory = 65536;

double round_trip(PushPullJob& job, std::size_t count, milliseconds pause) {
  return median(job.order({{"do", "round trips"}, {"count", count}, {"pause_ms", pause.count()}})[0]
                    .at("microseconds")
                    .get<std::vector<double>>());
}

// Of the busiest process.
double idle_percent(PushPullJob& job) {
  const auto before = job.processor_seconds();
  const TimePoint from = MonotonicClock::now();
  std::this_thread::sleep_for(kIdle);
  const auto after = job.processor_seconds();
  const double seconds = seconds_between(from, MonotonicClock::now());
  double most = 0;
  for (std::size_t i = 0; i < after.size(); ++i)
    most = std::max(most, 100 * (after[i] - before[i]) / seconds);
  return most;
}

}  // namespace

std::vector<Case> run_latency(const LatencyOptions& options) {
  PeerProcess peer(options.fabric, kRawMemory);
  PushPullJob job(
      {.fabric = options.fabric, .elements = kElements, .partition_elements = kElements});
  SocketEcho socket;
  // Last: no process starts while this one has a fabric open.
  RawFabric raw(options.fabric, kRawMemory);
  raw.connect(peer.raw().address, peer.raw().memory);
  peer.echo_raw(raw.address());

  Rounds spinning, sleeping, idle;
  round_trip(job, kSpinning, milliseconds(0));  // warms, and counts for nothing
  for (int round = 0; round < options.rounds; ++round) {
    const double ours = round_trip(job, kSpinning, milliseconds(0));
    peer.spin_raw(true);
    const double theirs = 1e6 * median(raw.round_trips(kSpinning));
    peer.spin_raw(false);
    spinning.add(ours, theirs);
    std::vector<double> echoes;
    for (std::size_t i = 0; i < kSleeping; ++i) {
      std::this_thread::sleep_for(kPause);
      echoes.push_back(1e6 * socket.round_trip());
    }
    sleeping.add(round_trip(job, kSleeping, kPause), median(echoes));
    idle.add(idle_percent(job), kIdleLimit);
  }
  const auto name = [&](const char* what) { return fmt::format("{} {}", options.fabric, what); };
  return {spinning.summary(name("push and commit, spinning"), "us"),
          sleeping.summary(name("push and commit, sleeping"), "us"),
          idle.summary(name("idle"), "%")};
}

}  // namespace leeway::bench
