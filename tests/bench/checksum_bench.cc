#include "tests/bench/checksum_bench.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tests/bench/pushpull_job.h"
#include "tests/bench/summary.h"

namespace leeway::bench {
namespace {

constexpr std::size_t kElements = std::size_t{1} << 24, kPartitionElements = std::size_t{1} << 20;
constexpr int kSteps = 4;  // in a round

PushPullJob::Options job(const std::string& fabric, bool checksum) {
  return {.fabric = fabric,
          .elements = kElements,
          .partition_elements = kPartitionElements,
          .step_core = true,
          .checksum = checksum};
}

}  // namespace

std::vector<Case> run_checksum(const ChecksumOptions& options) {
  PushPullJob with(job(options.fabric, true)), without(job(options.fabric, false));
  Rounds rounds;
  // The first round warms connections and pages, and counts for nothing.
  for (int round = -1; round < options.rounds; ++round) {
    const double before = round % 2 == 0 ? 0 : without.round("step", kSteps);
    const double ours = with.round("step", kSteps);
    const double limit = round % 2 == 0 ? without.round("step", kSteps) : before;
    if (round >= 0) rounds.add(ours, limit);
  }
  return {rounds.summary(fmt::format("{} steps with CRC32C", options.fabric), "GB/s")};
}

}  // namespace leeway::bench
