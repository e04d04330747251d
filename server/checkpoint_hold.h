// Where a server stands with the scheduler's checkpoint order: HOLD stops updates at a step
// boundary, CUT lets them go on up to named clocks, where the snapshot is taken. (ARCHITECTURE.md,
// "Checkpoints".) Not thread-safe: owned by the consistency core.
#pragma once

#include <map>
#include <string>

#include "server/worker_state.h"

namespace leeway::server {

class CheckpointHold {
 public:
  // A repeated order changes nothing; a new id replaces the old one.
  void hold(const std::string& id);
  void cut(const std::string& id, std::map<WorkerId, Clock> clocks);
  // No order any more (the scheduler gave it up or is done with it).
  void release();

  // May the next update count the worker's step of this clock?
  bool allows(const WorkerState& worker, WorkerId id, Clock clock) const;
  // How many of the worker's steps the cut wants.
  Clock target(const WorkerState& worker, WorkerId id) const;
  // Everything below the cut is applied: the snapshot is due.
  bool reached(const Workers& workers) const;
  void snapshot_taken() { stage_ = Stage::kTaken; }

  bool holding() const noexcept { return stage_ == Stage::kHold; }
  bool cutting() const noexcept { return stage_ == Stage::kCut; }
  const std::string& id() const noexcept { return id_; }  // "" without an order

 private:
  enum class Stage : std::uint8_t { kNone, kHold, kCut, kTaken };

  Stage stage_ = Stage::kNone;
  std::string id_;
  std::map<WorkerId, Clock> clocks_;
};

}  // namespace leeway::server
