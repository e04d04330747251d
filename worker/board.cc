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

}  // namespace leeway::worker
