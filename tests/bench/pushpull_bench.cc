#include "tests/bench/pushpull_bench.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/result.h"
#include "tests/bench/peer_process.h"
#include "tests/bench/pushpull_job.h"
#include "tests/bench/raw_fabric.h"
#include "tests/bench/summary.h"

namespace leeway::bench {
namespace {

constexpr int kSteps = 4;  // in a round, of each worker
constexpr std::size_t kLeastRawMemory = std::size_t{8} << 20;
constexpr std::size_t kMostRawMemory = std::size_t{512} << 20;
constexpr std::size_t kRawBytes = std::size_t{128} << 20;
constexpr std::size_t kRawDepth = 4;
constexpr const char* kKinds[] = {"push", "pull", "both"};

// GB/s of the fastest way that the provider has for bytes between two processes.
double best_raw(PeerProcess& peer, RawFabric& raw) {
  double best = 0;
  peer.spin_raw(true);
  for (const Move move : {Move::kRead, Move::kWrite})
    for (const std::size_t size : {std::size_t{1} << 20, std::size_t{4} << 20})
      best = std::max(best, static_cast<double>(kRawBytes) / 1e9 /
                                raw.transfer(move, size, kRawBytes / size, kRawDepth));
  peer.spin_raw(false);
  return best;
}

void run_size(const PushPullOptions& options, PushPullOptions::Size size,
              std::vector<Case>& cases) {
  // As much as a worker's gradients, so that the processor's caches help both alike.
  const std::size_t raw_memory =
      std::clamp((options.model_mib << 20) / 2, kLeastRawMemory, kMostRawMemory);
  PeerProcess peer(options.fabric, raw_memory);
  PushPullJob job({.fabric = options.fabric,
                   .servers = size.servers,
                   .workers = size.workers,
                   .elements = (options.model_mib << 20) / sizeof(float),
                   .partition_elements = (options.partition_mib << 20) / sizeof(float),
                   .optimizer = options.optimizer,
                   .memory_limit = options.memory_limit});
  // Last: no process starts while this one has a fabric open.
  RawFabric raw(options.fabric, raw_memory);
  raw.connect(peer.raw().address, peer.raw().memory);
  std::vector<Rounds> rounds(std::size(kKinds));
  // The first round warms connections and pages, and counts for nothing.
  for (int round = -1; round < options.rounds; ++round) {
    for (std::size_t i = 0; i < std::size(kKinds); ++i) {
      // In turn, so that a machine that slows down or speeds up favours neither.
      const double before = round % 2 == 0 ? 0 : best_raw(peer, raw);
      const double ours = job.round(kKinds[i], kSteps);
      const double limit = round % 2 == 0 ? best_raw(peer, raw) : before;
      if (round >= 0) rounds[i].add(ours, limit);
    }
  }
  const std::string name =
      fmt::format("{} {} server{} {} worker{}", options.fabric, size.servers,
                  size.servers == 1 ? "" : "s", size.workers, size.workers == 1 ? "" : "s");
  for (std::size_t i = 0; i < std::size(kKinds); ++i)
    cases.push_back(rounds[i].summary(fmt::format("{} {}", name, kKinds[i]), "GB/s"));
  const PushPullJob::Memory memory = job.server_memory();
  const auto parameters = static_cast<double>((options.model_mib << 20) / sizeof(float));
  Rounds held;
  held.add(memory.resident / parameters, memory.planned / parameters);
  cases.push_back(held.summary(fmt::format("{} {} memory", name, options.optimizer), "B/param"));
}

}  // namespace

std::vector<Case> run_pushpull(const PushPullOptions& options) {
  if (options.partition_mib > options.model_mib)
    throw ConfigError(fmt::format("--partition-mib {} is more than --model-mib {}",
                                  options.partition_mib, options.model_mib));
  std::vector<Case> cases;
  for (const PushPullOptions::Size size : options.sizes) run_size(options, size, cases);
  return cases;
}

}  // namespace leeway::bench
