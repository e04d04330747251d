#include "worker/control_thread.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <utility>

#include "common/log.h"

namespace leeway::worker {
namespace {

// While workers stand still for a checkpoint the scheduler hears of it as fast.
constexpr milliseconds kCheckpointWait{10};

}  // namespace

ControlThread::ControlThread(std::unique_ptr<ControlPlane> control, Config config, Board& board)
    : config_(std::move(config)),
      board_(board),
      control_(std::move(control)),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

void ControlThread::run(const std::stop_token& stop) {
  pthread_setname_np(pthread_self(), "control");
  while (!stop.stop_requested()) {
    if (!beat()) return;
    check_suspicion();
    tell_failure();
  }
}

bool ControlThread::beat() {
  rpc::WorkerReport report;
  std::int64_t epoch = 0;
  milliseconds wait = config_.heartbeat;
  {
    const std::lock_guard lock(board_.mutex);
    if (board_.finishing) return false;
    report = board_.report;
    report.paused = board_.paused(config_.who.id);
    epoch = board_.view.epoch;
    if (board_.keeps_residual && board_.view.checkpoint.stage != rpc::CheckpointStage::NONE)
      wait = std::min(wait, kCheckpointWait);
  }
  auto view = control_->watch(config_.who, epoch, wait, report);
  if (view) {
    silent_since_.reset();
    take(std::move(*view));
    return true;
  }
  if (!view.error().retryable()) {
    std::unique_lock lock(board_.mutex);
    // Once finish() is under way a scheduler that is done with this worker is no news.
    if (board_.finishing) return false;
    lock.unlock();
    board_.fail(fmt::format("the scheduler no longer takes this worker: {}", view.error().message),
                true);
    return false;
  }
  const TimePoint now = MonotonicClock::now();
  // Counted from the first failed call, not from the last good one: a process that was stopped for
  // a while gets to ask again before it judges the scheduler.
  if (!silent_since_) silent_since_ = now;
  if (now - *silent_since_ >= config_.silence) {
    board_.fail(
        fmt::format("the scheduler at {} has not answered for {:.1f} s ({}): it ended, or "
                    "the network between is down",
                    config_.scheduler, seconds_between(*silent_since_, now), view.error().message),
        true);
    return false;
  }
  std::unique_lock lock(board_.mutex);
  board_.changed.wait_for(lock, config_.heartbeat, [this] { return board_.finishing; });
  return true;
}

void ControlThread::take(rpc::View view) {
  const std::lock_guard lock(board_.mutex);
  if (view.epoch <= board_.view.epoch) return;
  board_.view = std::move(view);
  const rpc::View& now = board_.view;
  const bool ended = now.phase == rpc::Phase::FAILED;
  std::string why = now.reason;
  for (const rpc::Member& server : now.servers)
    if (!ended && server.state != rpc::MemberState::LIVE && now.phase == rpc::Phase::RUNNING)
      why = fmt::format(
          "server.{} is dead and its part of the model with it: resume the job from "
          "its last checkpoint with --resume auto",
          server.id);
  if ((ended || why != now.reason) && !board_.failure)
    board_.failure = Board::Failure{ended ? "the job failed: " + why : why, ended};
  board_.changed.notify_all();
}

void ControlThread::check_suspicion() {
  std::unique_lock lock(board_.mutex);
  if (!board_.suspicion || board_.failure || MonotonicClock::now() < board_.suspicion->until)
    return;
  std::string text = board_.suspicion->text;
  lock.unlock();
  board_.fail(std::move(text), false);
}

void ControlThread::tell_failure() {
  std::unique_lock lock(board_.mutex);
  if (!board_.failure || board_.failure->told) return;
  board_.failure->told = true;
  const std::string text = board_.failure->text;
  lock.unlock();
  if (auto status = control_->fault(config_.who, text); !status)
    log::warning("could not tell the scheduler ({}): {}", text, status.error().message);
}

}  // namespace leeway::worker
