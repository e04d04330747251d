#include "server/checkpoint_hold.h"

#include <algorithm>
#include <utility>

namespace leeway::server {

void CheckpointHold::hold(const std::string& id) {
  if (id_ == id) return;
  id_ = id;
  clocks_.clear();
  stage_ = Stage::kHold;
}

void CheckpointHold::cut(const std::string& id, std::map<WorkerId, Clock> clocks) {
  if (id_ == id && stage_ != Stage::kHold) return;
  id_ = id;
  clocks_ = std::move(clocks);
  stage_ = Stage::kCut;
}

void CheckpointHold::release() {
  stage_ = Stage::kNone;
  id_.clear();
  clocks_.clear();
}

Clock CheckpointHold::target(const WorkerState& worker, WorkerId id) const {
  const auto named = clocks_.find(id);
  const Clock wanted = named == clocks_.end() ? Clock(0) : named->second;
  // Of a worker that is dead or done no more will come, whatever was reported of it before.
  return worker.undecided() ? wanted : std::min(wanted, worker.ended);
}

bool CheckpointHold::allows(const WorkerState& worker, WorkerId id, Clock clock) const {
  switch (stage_) {
    case Stage::kHold:
      return false;
    case Stage::kCut:
      return clock < target(worker, id);
    case Stage::kNone:
    case Stage::kTaken:
      break;
  }
  return true;
}

bool CheckpointHold::reached(const Workers& workers) const {
  return stage_ == Stage::kCut && std::ranges::all_of(workers, [&](const auto& entry) {
           return entry.second.applied >= target(entry.second, entry.first);
         });
}

}  // namespace leeway::server
