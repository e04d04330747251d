#include "worker/scheduler_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/log.h"

namespace leeway::worker {
namespace {

constexpr milliseconds kFirstRetry{50};
constexpr milliseconds kSlowestRetry{1000};

}  // namespace

SchedulerLine::SchedulerLine(std::unique_ptr<ControlPlane> control, const SessionOptions& options,
                             Board& board)
    : control_(std::move(control)),
      who_(options.rank == kAnyRank ? "worker" : fmt::format("worker.{}", options.rank)),
      scheduler_(options.scheduler),
      board_(board) {
  caller_.token = options.token;
  caller_.role = rpc::Role::WORKER;
  caller_.id = static_cast<std::int32_t>(options.rank);
}

template <typename Call>
std::invoke_result_t<Call> SchedulerLine::insist(milliseconds patience, Call call) {
  const TimePoint until = MonotonicClock::now() + patience;
  std::string last_cause;
  milliseconds pause = kFirstRetry;
  while (true) {
    auto result = call();
    if (result || !result.error().retryable() || MonotonicClock::now() + pause >= until)
      return result;
    if (result.error().message != last_cause) {
      last_cause = result.error().message;
      log::warning("trying again for {:.0f} s: {}", seconds_between(MonotonicClock::now(), until),
                   last_cause);
    }
    Lock lock(board_.mutex);
    board_.changed.wait_for(lock, pause, [this] { return board_.failure.has_value(); });
    if (board_.failure) throw_failure(lock);
    pause = std::min(pause * 2, kSlowestRetry);
  }
}

rpc::Registration SchedulerLine::join(const rpc::RegisterRequest& request, milliseconds patience) {
  auto registration = insist(patience, [&] { return control_->join(request); });
  // Nobody has this worker in a list yet, so there is nobody to tell.
  if (!registration)
    throw SessionError(fmt::format("{}: cannot join the job of the scheduler at {}: {}", who_,
                                   scheduler_, registration.error().message));
  caller_.incarnation = registration->incarnation;
  if (request.id < 0) {
    caller_.id = registration->id;
    who_ = fmt::format("worker.{}", registration->id);
  }
  return *std::move(registration);
}

void SchedulerLine::declare(const rpc::Model& model, milliseconds patience) {
  auto status = insist(patience, [&] { return control_->declare(caller_, model); });
  if (!status) fail_with(fmt::format("the model was refused: {}", status.error().message));
}

rpc::Plan SchedulerLine::plan(milliseconds patience) {
  auto plan = insist(patience, [this] { return control_->plan(caller_); });
  if (!plan) fail_with(fmt::format("there is no plan of the model: {}", plan.error().message));
  return *std::move(plan);
}

void SchedulerLine::stop(const std::string& reason, milliseconds patience) {
  auto status = insist(
      patience, [&] { return control_->stop(caller_, fmt::format("{}: {}", who_, reason)); });
  if (!status) fail_with(fmt::format("could not stop the job: {}", status.error().message));
}

void SchedulerLine::finish(const rpc::WorkerReport& report, milliseconds patience) {
  auto status = insist(patience, [&] { return control_->finish(caller_, report); });
  if (!status) fail_with(fmt::format("could not finish: {}", status.error().message));
}

void SchedulerLine::check() {
  Lock lock(board_.mutex);
  if (board_.failure) throw_failure(lock);
}

void SchedulerLine::check(Status status) {
  if (!status) fail_with(std::move(status).error().message);
}

void SchedulerLine::fail_with(std::string text) {
  board_.fail(std::move(text), false);
  Lock lock(board_.mutex);
  throw_failure(lock);
}

void SchedulerLine::throw_failure(Lock& lock) {
  const std::string text = board_.failure->text;
  tell(lock);
  throw SessionError(fmt::format("{}: {}", who_, text));
}

void SchedulerLine::tell(Lock& lock) noexcept {
  if (!board_.failure || board_.failure->told) return;
  board_.failure->told = true;
  const std::string text = board_.failure->text;
  lock.unlock();
  if (auto status = control_->fault(caller_, text); !status)
    log::warning("could not tell the scheduler: {}", status.error().message);
}

}  // namespace leeway::worker
