#include "server/slab_admission.h"

#include <algorithm>

namespace leeway::server {

SlabAdmission::SlabAdmission(bool per_clock, std::uint32_t slabs)
    : per_clock_(per_clock), usable_(slabs) {
  for (std::uint32_t slab = slabs; slab > 0; --slab) free_.push_back(slab - 1);
}

void SlabAdmission::wait(WorkerId worker, const OpenStep& step) {
  waiting_.emplace(step.clock.value(), step.arrival, worker);
}

void SlabAdmission::forget(WorkerId worker) {
  std::erase_if(waiting_, [&](const Place& place) { return std::get<2>(place) == worker; });
}

namespace {

// A late step of its has a slab: the slab that its next step gets.
bool has_late_slab(const WorkerState& worker, Clock late_before) {
  const auto late = [&](const auto& step) { return step.slab && step.clock < late_before; };
  return (worker.open && late(*worker.open)) || std::ranges::any_of(worker.steps, late);
}

// It needs a slab for a step before the clock.
bool needs_before(const WorkerState& worker, std::uint64_t clock, Clock late_before) {
  if (!worker.live() || has_late_slab(worker, late_before)) return false;
  const bool admitted = worker.open && worker.open->slab;
  return worker.ended.value() + (admitted ? 1 : 0) < clock;
}

}  // namespace

bool SlabAdmission::room_for_one(const Workers& workers, Clock late_before,
                                 const Newcomers& newcomers) const {
  if (!per_clock_) return true;
  // Those that must end before what has slabs can be applied, the smallest live clock at least.
  std::uint64_t highest = 0, lowest = UINT64_MAX;
  for (const auto& [id, worker] : workers) {
    if (worker.live()) lowest = std::min(lowest, worker.ended.value());
    if (worker.open && worker.open->slab) highest = std::max(highest, worker.open->clock.value());
    for (const EndedStep& step : worker.steps)
      if (step.slab) highest = std::max(highest, step.clock.value());
  }
  if (lowest != UINT64_MAX) highest = std::max(highest, lowest + 1);
  std::size_t needed = newcomers.placed.size() + 1;
  for (const auto& [id, worker] : workers)
    if (needs_before(worker, highest, late_before)) ++needed;
  return free_.size() >= needed;
}

bool SlabAdmission::may_admit(const Workers& workers, Clock late_before, const Newcomers& newcomers,
                              const Place& place) const {
  if (free_.empty()) return false;
  if (!per_clock_) return true;
  const auto [clock, arrival, self] = place;
  std::size_t reserved = 0;
  bool lowest = true;
  for (const auto& [id, worker] : workers) {
    if (id == self || !worker.live()) continue;
    if (needs_before(worker, clock, late_before)) ++reserved;
    lowest &= worker.ended.value() >= clock;
  }
  for (const Clock first : newcomers.placed) reserved += first.value() < clock ? 1 : 0;
  if (!lowest) reserved += newcomers.waiting;
  return free_.size() - 1 >= reserved;
}

std::optional<std::pair<WorkerId, std::uint32_t>> SlabAdmission::admit(const Workers& workers,
                                                                       Clock late_before,
                                                                       const Newcomers& newcomers) {
  // A later place needs no less than the first: when the first may not, nobody may.
  if (waiting_.empty() || !may_admit(workers, late_before, newcomers, *waiting_.begin()))
    return std::nullopt;
  const WorkerId worker = std::get<2>(*waiting_.begin());
  waiting_.erase(waiting_.begin());
  const std::uint32_t slab = free_.back();
  free_.pop_back();
  return std::pair{worker, slab};
}

}  // namespace leeway::server
