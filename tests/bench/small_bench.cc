#include "tests/bench/small_bench.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tests/bench/pushpull_job.h"
#include "tests/bench/summary.h"

namespace leeway::bench {
namespace {

constexpr std::size_t kTensors = 10000, kElements = 64;
constexpr std::size_t kPartitionElements = std::size_t{1} << 20;
constexpr int kSteps = 20;  // in a round

PushPullJob::Options job(const std::string& fabric, std::size_t tensors) {
  return {.fabric = fabric,
          .elements = kTensors * kElements,
          .tensors = tensors,
          .partition_elements = tensors == 1 ? kPartitionElements : kElements,
          .step_core = true};
}

}  // namespace

std::vector<Case> run_small(const SmallOptions& options) {
  PushPullJob many(job(options.fabric, kTensors)), one(job(options.fabric, 1));
  Rounds rounds;
  // The first round warms connections and pages, and counts for nothing.
  for (int round = -1; round < options.rounds; ++round) {
    const double before = round % 2 == 0 ? 0 : one.round("step", kSteps);
    const double ours = many.round("step", kSteps);
    const double limit = round % 2 == 0 ? one.round("step", kSteps) : before;
    if (round >= 0) rounds.add(ours, limit);
  }
  return {rounds.summary(
      fmt::format("{} {} tensors of {} bytes", options.fabric, kTensors, kElements * sizeof(float)),
      "GB/s")};
}

}  // namespace leeway::bench
