#include "server/gate.h"

#include <fmt/format.h>

#include <algorithm>

namespace leeway::server {

std::uint64_t Gate::needed(const PendingPull& pull) const {
  const std::uint64_t clock = pull.clock.value();
  const std::uint64_t bound = pull.bound > UINT64_MAX - slack_ ? pull.bound : pull.bound + slack_;
  return clock > bound ? clock - bound : 0;
}

bool Gate::open(const Workers& workers, Clock clocks_applied, WorkerId puller,
                const PendingPull& pull) const {
  const WorkerState& own = workers.at(puller);
  // Whole clocks hold a worker's own steps too; here only its commit must have come, so that a
  // worker is never two steps ahead of what this server knows of it.
  if ((per_clock_ ? own.ended : own.upcoming()) < pull.clock) return false;
  const std::uint64_t needs = needed(pull);
  if (per_clock_) return clocks_applied.value() >= needs;
  return std::ranges::all_of(workers, [&](const auto& entry) {
    return !entry.second.live() || entry.second.upcoming().value() >= needs;
  });
}

Clock Gate::slowest(const Workers& workers) {
  Clock smallest(UINT64_MAX);
  for (const auto& [id, worker] : workers)
    if (worker.live()) smallest = std::min(smallest, worker.upcoming());
  return smallest;
}

std::string Gate::blockers(const Workers& workers, Clock clocks_applied, WorkerId puller,
                           const PendingPull& pull) const {
  std::string text;
  const auto name = [&](WorkerId id, std::uint64_t has, std::uint64_t needs,
                        std::string_view what) {
    text += fmt::format("{}worker.{} ({} {} of {} steps here)", text.empty() ? "" : ", ",
                        id.value(), what, has, needs);
  };
  const std::uint64_t needs = needed(pull);
  for (const auto& [id, worker] : workers) {
    if (per_clock_) {
      const std::uint64_t steps = id == puller ? std::max(needs, pull.clock.value()) : needs;
      if (worker.undecided() && worker.ended.value() < steps)
        name(id, worker.ended.value(), steps, "ended");
    } else {
      const std::uint64_t steps = id == puller ? pull.clock.value() : needs;
      if ((worker.live() || id == puller) && worker.applied.value() < steps)
        name(id, worker.applied.value(), steps, "applied");
    }
  }
  if (text.empty() && per_clock_ && clocks_applied.value() < needs)
    text = fmt::format("the update of clock {}", clocks_applied.value());
  return text;
}

}  // namespace leeway::server
