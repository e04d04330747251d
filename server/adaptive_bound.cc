#include "server/adaptive_bound.h"

#include <algorithm>

namespace leeway::server {
namespace {

// Of the workers that are the furthest behind, the one whose commit is expected last.
const WorkerState* slowest_of(const Workers& workers, WorkerId puller) {
  const WorkerState* slowest = nullptr;
  for (const auto& [id, worker] : workers) {
    if (id == puller || !worker.live()) continue;
    const auto expected = [](const WorkerState& one) {
      return one.answered_at ? *one.answered_at + one.pace : TimePoint::max();
    };
    if (slowest == nullptr || worker.ended < slowest->ended ||
        (worker.ended == slowest->ended && expected(worker) > expected(*slowest)))
      slowest = &worker;
  }
  return slowest;
}

}  // namespace

std::uint64_t choose_bound(const Workers& workers, WorkerId puller, std::uint64_t lead,
                           std::uint64_t now_in_force, Bound range, TimePoint now) {
  if (lead <= *range.low) return *range.low;
  if (lead <= now_in_force || lead > range.value) return now_in_force;
  const WorkerState& own = workers.at(puller);
  const WorkerState* slowest = slowest_of(workers, puller);
  if (slowest == nullptr || !slowest->answered_at || slowest->pace == Duration() ||
      own.pace == Duration())
    return now_in_force;
  const TimePoint next = std::max(*slowest->answered_at + slowest->pace, now);
  const auto wait_after = [&](std::uint64_t steps) {
    const Duration ahead = now + own.pace * static_cast<Duration::rep>(steps) - next;
    if (ahead <= Duration()) return -ahead;
    const Duration into = ahead % slowest->pace;
    return into == Duration() ? into : slowest->pace - into;
  };
  // The first of the steps more has this lead, the last may have no more than HIGH. Further than
  // this the slowest worker has committed again, and the question comes anew.
  constexpr std::uint64_t kFurthest = 64;
  const std::uint64_t most = std::min(range.value - lead + 1, kFurthest);
  std::uint64_t best = 0;
  for (std::uint64_t steps = 1; steps <= most; ++steps)
    if (wait_after(steps) < wait_after(best)) best = steps;
  return best == 0 ? now_in_force : lead + best - 1;
}

}  // namespace leeway::server
