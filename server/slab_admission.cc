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

bool SlabAdmission::may_admit(const Workers& workers, const Place& place) const {
  if (free_.empty()) return false;
  if (!per_clock_) return true;
  const auto [clock, arrival, self] = place;
  std::size_t reserved = 0;
  for (const auto& [id, worker] : workers) {
    if (id == self || !worker.live()) continue;
    const bool admitted = worker.open && worker.open->slab;
    if (worker.ended.value() + (admitted ? 1 : 0) < clock) ++reserved;
  }
  return free_.size() - 1 >= reserved;
}

std::optional<std::pair<WorkerId, std::uint32_t>> SlabAdmission::admit(const Workers& workers) {
  // A later place needs no less than the first: when the first may not, nobody may.
  if (waiting_.empty() || !may_admit(workers, *waiting_.begin())) return std::nullopt;
  const WorkerId worker = std::get<2>(*waiting_.begin());
  waiting_.erase(waiting_.begin());
  const std::uint32_t slab = free_.back();
  free_.pop_back();
  return std::pair{worker, slab};
}

}  // namespace leeway::server
