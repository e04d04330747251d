#include "worker/board.h"

#include <utility>

namespace leeway::worker {

Board::Board() {
  view.epoch = -1;
  view.phase = rpc::Phase::GATHERING;
  view.initializer = -1;
}

void Board::fail(std::string text, bool told) {
  const std::lock_guard lock(mutex);
  if (!failure) failure = Failure{std::move(text), told};
  changed.notify_all();
}

void Board::suspect(std::string text, milliseconds patience) {
  const std::lock_guard lock(mutex);
  if (!suspicion) suspicion = Suspicion{std::move(text), MonotonicClock::now() + patience};
}

bool Board::pausing(std::int32_t id) const {
  const rpc::CheckpointOrder& order = view.checkpoint;
  if (!keeps_residual || in_step ||
      (order.stage != rpc::CheckpointStage::PAUSE && order.stage != rpc::CheckpointStage::HOLD))
    return false;
  const auto before = order.clocks.find(id);
  return before == order.clocks.end() || report.clock >= before->second;
}

std::string Board::paused(std::int32_t id) const {
  const bool done =
      initial_confirmed && confirmed == Clock(static_cast<std::uint64_t>(report.clock));
  return done && pausing(id) ? view.checkpoint.id : "";
}

}  // namespace leeway::worker
