#include "worker/session_impl.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>

#include "common/log.h"

namespace leeway::worker {
namespace {

// A wait that takes so long is worth a line in the log.
constexpr std::chrono::seconds kExplainFirst{5};
constexpr std::chrono::seconds kExplainAgain{30};
// How long an injected kill waits for the pushes before it to reach the servers.
constexpr std::chrono::seconds kKillPatience{2};

}  // namespace

void SessionImpl::wait(Lock& lock, const std::string& waiting, const std::function<bool()>& ready) {
  TimePoint explain = MonotonicClock::now() + kExplainFirst;
  while (true) {
    if (board_.failure) line_.throw_failure(lock);
    if (keep_residual_if_cut(lock)) continue;
    if (ready()) return;
    if (layout_ && push_initial_if_ours(lock)) continue;
    if (board_.changed.wait_until(lock, explain) != std::cv_status::timeout) continue;
    explain = MonotonicClock::now() + kExplainAgain;
    const std::string paused = board_.paused(line_.caller().id);
    if (!paused.empty())
      log::warning("waits for the other workers to come to checkpoint {}", paused);
    // Without the lock: the endpoint's thread may need it to make room for the question.
    lock.unlock();
    data_->explain(waiting);
    lock.lock();
  }
}

bool SessionImpl::keep_residual_if_cut(Lock& lock) {
  const rpc::CheckpointOrder& order = board_.view.checkpoint;
  if (!keeper_ || order.stage != rpc::CheckpointStage::CUT || order.id == kept_) return false;
  const auto cut = order.clocks.find(line_.caller().id);
  if (cut == order.clocks.end() || cut->second != board_.report.clock) return false;
  kept_ = order.id;
  lock.unlock();
  keeper_->keep(kept_, gradients_->residual());
  lock.lock();
  return true;
}

bool SessionImpl::begin_step() {
  if (phase_ == Phase::kDeclaring) fail_with("begin_step() was called before start()");
  if (phase_ == Phase::kInStep)
    fail_with(fmt::format("begin_step() was called twice: commit() step {} first", clock_.value()));
  if (phase_ == Phase::kFinished) fail_with("begin_step() was called after finish()");
  const TimePoint from = MonotonicClock::now();
  bool stopping = false;
  {
    Lock lock(board_.mutex);
    wait(lock, fmt::format("weights for step {}", clock_.value()), [&] {
      stopping = board_.stopping();
      return stopping || (board_.weights == clock_ && !board_.pausing(line_.caller().id));
    });
    board_.in_step = !stopping;
    board_.report.seconds_waiting += seconds_between(from, MonotonicClock::now());
  }
  if (stopping) return false;
  model_.forget_initial();
  if (device_) line_.check(device_->weights_arrived());
  gradients_->begin_step(static_cast<float>(scaler_.scale()));
  poisoned_ = false;
  phase_ = Phase::kInStep;
  if (faults_.due(Injection::Kind::kPause, clock_)) raise(SIGSTOP);
  step_began_ = MonotonicClock::now();
  return true;
}

const Layout::Tensor& SessionImpl::tensor_of(Parameter parameter, std::string_view call) const {
  if (layout_ && parameter.index() < model_.size()) return layout_->tensors()[parameter.index()];
  throw SessionError(fmt::format(
      "{}: {}() of a parameter that is not of this session, or before start()", line_.who(), call));
}

WeightsInfo SessionImpl::weights_info(Parameter parameter) const {
  const Layout::Tensor& tensor = tensor_of(parameter, "weights_info");
  const std::lock_guard lock(board_.mutex);
  WeightsInfo info;
  if (board_.versions.empty()) return info;  // none have come yet
  info.bound = {board_.bound == transport::kUnboundedStaleness ? Bound::kInfinite : board_.bound};
  bool first = true;
  for (PartitionId p : tensor.parts) {
    const Version version = board_.versions[p.value()];
    info.oldest = first ? version : std::min(info.oldest, version);
    info.newest = std::max(info.newest, version);
    info.staleness =
        std::max(info.staleness, board_.staleness[layout_->parts()[p.value()].server.value()]);
    first = false;
  }
  return info;
}

std::span<const std::byte> SessionImpl::weights(Parameter parameter) const {
  const Layout::Tensor& tensor = tensor_of(parameter, "weights");
  if (device_)
    throw SessionError(
        fmt::format("{}: weights() of a session on a device: use device_weights()", line_.who()));
  const std::size_t width = size_of(settings_.pull_type());
  return data_->weights().subspan(tensor.begin * width, tensor.elements * width);
}

const std::byte* SessionImpl::device_weights(Parameter parameter) const {
  const Layout::Tensor& tensor = tensor_of(parameter, "device_weights");
  if (!device_)
    throw SessionError(
        fmt::format("{}: device_weights() of a session on the host: use weights()", line_.who()));
  return data_->device_weights() + tensor.begin * size_of(settings_.pull_type());
}

void SessionImpl::push(Parameter parameter, std::span<const float> gradient) {
  if (device_ && !gradient.empty())
    fail_with("a gradient on the host was pushed, and this session is on a device");
  add(parameter, gradient);
}

void SessionImpl::push(Parameter parameter, DeviceGradient gradient) {
  if (!device_ && gradient.elements != 0)
    fail_with("a gradient on a device was pushed, and this session is on the host");
  add(parameter, {gradient.data, gradient.elements});
}

void SessionImpl::add(Parameter parameter, std::span<const float> gradient) {
  tensor_of(parameter, "push");
  line_.check();
  const Declared& declared = model_[parameter];
  if (phase_ != Phase::kInStep)
    fail_with(fmt::format("parameter {} was pushed outside a step: call begin_step() first",
                          declared.name));
  if (gradient.size() != declared.elements)
    fail_with(fmt::format("parameter {} has {} elements, the gradient pushed has {}", declared.name,
                          declared.elements, gradient.size()));
  obey_kill();
  const bool poison =
      !poisoned_ && declared.elements != 0 && faults_.due(Injection::Kind::kNonfinite, clock_);
  poisoned_ = poisoned_ || poison;
  if (gradients_->pushes().pushes(parameter.index()) == options_.accumulate_steps)
    fail_with(fmt::format("parameter {} was pushed {} times in step {}: accumulate_steps is {}",
                          declared.name, options_.accumulate_steps + 1, clock_.value(),
                          options_.accumulate_steps));
  line_.check(gradients_->add(parameter.index(), gradient, poison));
}

StepResult SessionImpl::commit(const StepInfo& info) {
  line_.check();
  if (phase_ != Phase::kInStep)
    fail_with("commit() was called outside a step: call begin_step() first");
  obey_kill();
  if (const auto missing = gradients_->pushes().first_incomplete())
    fail_with(fmt::format("commit() of step {}: parameter {} was pushed {} of {} times",
                          clock_.value(), model_[Parameter(*missing)].name,
                          gradients_->pushes().pushes(*missing), options_.accumulate_steps));
  line_.check(gradients_->settle());
  obey_slowdown();
  const bool skipped = gradients_->skipped();
  if (auto status = scaler_.finished(!skipped); !status)
    fail_with(fmt::format("step {}: {}", clock_.value(), status.error().message));
  if (skipped)
    log::info("skipped step {}: a gradient is not finite; the loss scale is {} now", clock_.value(),
              scaler_.scale());
  const double norm = gradients_->norm();
  if (gradients_->end_step({.clock = clock_, .samples = info.samples, .state = scaler_.save()}))
    clock_ = clock_.next();
  phase_ = Phase::kBetweenSteps;

  const std::lock_guard lock(board_.mutex);
  rpc::WorkerReport& report = board_.report;
  board_.in_step = false;
  report.clock = static_cast<std::int64_t>(clock_.value());
  report.samples += info.samples;
  report.skipped_steps += skipped ? 1 : 0;
  report.loss = info.loss;
  report.epoch = info.epoch;
  report.loss_scale = scaler_.scale();
  return {.skipped = skipped, .loss_scale = scaler_.scale(), .gradient_norm = norm};
}

void SessionImpl::end_round() {
  if (!gradients_->end_round(clock_, scaler_.save())) return;
  clock_ = clock_.next();
  const std::lock_guard lock(board_.mutex);
  board_.report.clock = static_cast<std::int64_t>(clock_.value());
}

void SessionImpl::pull_final() {
  if (phase_ != Phase::kBetweenSteps)
    fail_with("pull_final() was called before start(), inside a step, or after finish()");
  end_round();
  const TimePoint from = MonotonicClock::now();
  Lock lock(board_.mutex);
  board_.final_weights = false;
  lock.unlock();
  data_->pull_final();
  lock.lock();
  wait(lock, "the final weights", [this] { return board_.final_weights; });
  board_.report.seconds_waiting += seconds_between(from, MonotonicClock::now());
  lock.unlock();
  if (device_) line_.check(device_->weights_arrived());
}

void SessionImpl::stop(const std::string& reason) {
  if (phase_ != Phase::kBetweenSteps && phase_ != Phase::kInStep)
    fail_with("stop() was called before start() or after finish()");
  line_.stop(reason, settings_.member_timeout_ms);
}

void SessionImpl::finish(const std::map<std::string, double>& metrics) {
  if (phase_ == Phase::kDeclaring) fail_with("finish() was called before start()");
  if (phase_ == Phase::kFinished) fail_with("finish() was called twice");
  if (phase_ == Phase::kInStep && gradients_->pushes().touched())
    fail_with(fmt::format("finish() was called inside step {}: commit() it first", clock_.value()));
  rpc::WorkerReport report;
  {
    Lock lock(board_.mutex);
    const bool stopping = board_.stopping();  // what is not in the checkpoint is done again
    lock.unlock();
    if (!stopping) end_round();
    lock.lock();
    wait(lock, "the servers to confirm the last step",
         [this] { return board_.confirmed == clock_ && board_.initial_confirmed; });
    if (keeper_ && !stopping) {
      lock.unlock();
      line_.check(keeper_->keep_last(fmt::format("end-{}", line_.caller().incarnation),
                                     gradients_->residual()));
      lock.lock();
    }
    board_.report.metrics = metrics;
    board_.finishing = true;
    board_.changed.notify_all();
    report = board_.report;
  }
  line_.finish(report, settings_.member_timeout_ms);
  phase_ = Phase::kFinished;
  control_thread_.reset();
}

void SessionImpl::note_loading(double seconds) {
  const std::lock_guard lock(board_.mutex);
  board_.report.seconds_loading += seconds;
}

void SessionImpl::obey_slowdown() {
  const double factor = faults_.slowdown();
  if (factor <= 1) return;
  const std::chrono::duration<double> extra((factor - 1) *
                                            seconds_between(step_began_, MonotonicClock::now()));
  Lock lock(board_.mutex);
  board_.changed.wait_for(lock, extra, [this] { return board_.failure.has_value(); });
  if (board_.failure) line_.throw_failure(lock);
}

// Between the pushes of the step: half of the parameters are the servers' already.
void SessionImpl::obey_kill() {
  if (!faults_.due(Injection::Kind::kKill, clock_)) return;
  const GradientBuffer& pushes = gradients_->pushes();
  if (pushes.complete() < std::max<std::size_t>(pushes.wanted() / 2, 1)) return;
  line_.check(gradients_->send_ready());
  Lock lock(board_.mutex);
  board_.changed.wait_for(lock, kKillPatience, [this] {
    return board_.payloads_taken >= initial_sent_ + gradients_->sent();
  });
  raise(SIGKILL);
}

}  // namespace leeway::worker
