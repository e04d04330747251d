#include "worker/session_impl.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <type_traits>
#include <utility>

#include "common/log.h"
#include "kernels/backend.h"
#include "worker/top_k_gradients.h"

namespace leeway::worker {

using transport::Ending;

namespace {

constexpr milliseconds kFirstRetry{50};
constexpr milliseconds kSlowestRetry{1000};
// A wait that takes so long is worth a line in the log.
constexpr std::chrono::seconds kExplainFirst{5};
constexpr std::chrono::seconds kExplainAgain{30};
// How long an injected kill waits for the pushes before it to reach the servers.
constexpr std::chrono::seconds kKillPatience{2};
// Gradients wait for each other until there are so many elements, or the step ends.
constexpr std::size_t kPushTogether = std::size_t{1} << 17;
// Servers of one job that a worker's queues are sized for.
constexpr std::uint32_t kFabricPeers = 64;

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

LossScaler::Limits limits_of(const JobSettings& settings) {
  return {.initial = settings.loss_scale_initial,
          .min = settings.loss_scale_min,
          .max = settings.loss_scale_max,
          .growth_interval = settings.loss_scale_growth_interval};
}

std::unique_ptr<transport::Endpoint> open_endpoint(const SessionOptions& options) {
  try {
    return transport::Endpoint::open(
        {.fabric = options.fabric,
         .bind = options.bind,
         .peers = kFabricPeers,
         .gpu = "auto",
         .device_memory = options.device != nullptr && options.device->cuda().has_value()});
  } catch (const ConfigError& error) {
    throw SessionError(fmt::format("worker.{}: {}", options.rank, error.what()));
  }
}

}  // namespace

std::unique_ptr<Session> join_with(const SessionOptions& options,
                                   const ControlPlaneFactory& control,
                                   const transport::CudaDriver* driver) {
  return std::make_unique<SessionImpl>(options, control, driver);
}

SessionImpl::SessionImpl(const SessionOptions& options, const ControlPlaneFactory& control,
                         const transport::CudaDriver* driver)
    : options_(options), control_(control()) {
  if (options_.accumulate_steps == 0)
    throw SessionError(fmt::format("{}: accumulate_steps must be at least 1", who()));
  auto faults = OwnFaults::parse(options_.inject, options_.rank);
  if (!faults) throw SessionError(fmt::format("{}: {}", who(), faults.error().message));
  faults_ = std::move(*faults);
  open_gpu(driver);
  data_.emplace(open_endpoint(options_), board_);
  take_registration(join(data_->info()));
  control_thread_.emplace(control(),
                          ControlThread::Config{.who = caller_,
                                                .scheduler = options_.scheduler,
                                                .heartbeat = settings_.heartbeat_interval_ms,
                                                .silence = settings_.member_timeout_ms},
                          board_);
  const transport::EndpointInfo& fabric = data_->info();
  log::info("worker {} of {} joined; fabric {}: {}", options_.rank, options_.world_size,
            fabric.fabric, transport::describe(fabric));
}

SessionImpl::~SessionImpl() {
  // What is still to be published calls back into members.
  if (gpu_)
    if (auto s = gpu_->synchronize(); !s) log::warning("{}", s.error().message);
  if (phase_ == Phase::kFinished) return;
  board_.fail(std::uncaught_exceptions() > 0 ? "ended by an exception before finish()"
                                             : "left before finish()",
              false);
  Lock lock(board_.mutex);
  tell(lock);
}

void SessionImpl::open_gpu(const transport::CudaDriver* driver) {
  if (options_.device == nullptr || options_.device->on_host()) return;
  const auto refuse = [this](const std::string& why) {
    throw SessionError(fmt::format("{}: device {}: {}", who(), options_.device->name(), why));
  };
  const auto place = options_.device->cuda();
  if (!place) return refuse("it has memory of its own and is not CUDA's");
  if (options_.accumulate_steps != 1)
    refuse("accumulate_steps is for gradients on the host: add them up on the device, push once");
  std::string why;
  if (driver == nullptr) driver = transport::cuda_driver(why);
  if (driver == nullptr) refuse(why);
  auto gpu = transport::Gpu::open(*driver, place->device, place->stream);
  if (!gpu) refuse(gpu.error().message);
  gpu_ = std::move(*gpu);
}

std::string SessionImpl::who() const { return fmt::format("worker.{}", options_.rank); }

rpc::Registration SessionImpl::join(const transport::EndpointInfo& fabric) {
  rpc::RegisterRequest request;
  request.token = options_.token;
  request.role = rpc::Role::WORKER;
  request.id = static_cast<std::int32_t>(options_.rank);
  request.host = host_name();
  request.pid = getpid();
  request.fabric.fabric = fabric.fabric;
  request.fabric.provider = fabric.provider;
  request.fabric.device = fabric.device;
  request.fabric.printable = fabric.printable;
  request.fabric.address.assign(reinterpret_cast<const char*>(fabric.address.data()),
                                fabric.address.size());
  auto registration = insist(options_.join_timeout, [&] { return control_->join(request); });
  if (registration) return *std::move(registration);
  // Nobody has this worker in a list yet, so there is nobody to tell.
  throw SessionError(fmt::format("{}: cannot join the job of the scheduler at {}: {}", who(),
                                 options_.scheduler, registration.error().message));
}

void SessionImpl::take_registration(const rpc::Registration& registration) {
  caller_.token = options_.token;
  caller_.role = rpc::Role::WORKER;
  caller_.id = static_cast<std::int32_t>(options_.rank);
  caller_.incarnation = registration.incarnation;
  job_ = static_cast<std::uint64_t>(registration.job);
  servers_ = static_cast<std::size_t>(std::max(registration.servers, 0));
  if (registration.workers != static_cast<std::int64_t>(options_.world_size))
    fail_with(fmt::format("WORLD_SIZE is {} but the job has {} workers", options_.world_size,
                          registration.workers));
  auto settings = JobSettings::from_values(registration.settings);
  if (!settings)
    fail_with(
        fmt::format("the scheduler is of another version of Leeway: {}", settings.error().message));
  settings_ = *std::move(settings);
  scaler_ = LossScaler(limits_of(settings_));
}

template <typename Call>
std::invoke_result_t<Call> SessionImpl::insist(milliseconds patience, Call call) {
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

Parameter SessionImpl::declare(std::string name, Shape shape, std::span<const float> initial) {
  if (phase_ != Phase::kDeclaring) fail_with(fmt::format("declare({}) came after start()", name));
  if (name.empty()) fail_with("a parameter without a name was declared");
  const auto elements = element_count(shape);
  if (!elements)
    fail_with(fmt::format("parameter {} has the shape {}, which no memory holds", name,
                          to_string(shape)));
  if (*elements != initial.size())
    fail_with(fmt::format("parameter {} has {} elements by its shape {} and {} initial values",
                          name, *elements, to_string(shape), initial.size()));
  for (const Declared& other : declared_)
    if (other.name == name) fail_with(fmt::format("parameter {} is declared twice", name));
  declared_.push_back({std::move(name), std::move(shape), static_cast<std::size_t>(*elements)});
  initial_.emplace_back(initial.begin(), initial.end());
  return Parameter(declared_.size() - 1);
}

void SessionImpl::start() {
  if (phase_ != Phase::kDeclaring) fail_with("start() was called twice");
  if (declared_.empty()) fail_with("no parameter was declared: call declare() before start()");
  agree_on_model();
  take_plan();
  reach_servers();
  phase_ = Phase::kBetweenSteps;
}

void SessionImpl::agree_on_model() {
  rpc::Model model;
  model.settings = options_.settings;
  for (const Declared& declared : declared_) {
    rpc::TensorSpec tensor;
    tensor.name = declared.name;
    tensor.shape = declared.shape;
    model.tensors.push_back(std::move(tensor));
  }
  auto status =
      insist(settings_.start_timeout_ms, [&] { return control_->declare(caller_, model); });
  if (!status) fail_with(fmt::format("the model was refused: {}", status.error().message));
}

void SessionImpl::take_plan() {
  {
    Lock lock(board_.mutex);
    wait(lock, "the other workers", [this] { return board_.view.phase != rpc::Phase::GATHERING; });
  }
  auto plan = insist(settings_.start_timeout_ms, [this] { return control_->plan(caller_); });
  if (!plan) fail_with(fmt::format("there is no plan of the model: {}", plan.error().message));
  auto settings = JobSettings::from_values(plan->settings);
  if (!settings)
    fail_with(
        fmt::format("the scheduler is of another version of Leeway: {}", settings.error().message));
  settings_ = *std::move(settings);
  auto layout = Layout::make(*plan, declared_, servers_, settings_);
  if (!layout) fail_with(layout.error().message);
  layout_ = *std::move(layout);

  scaler_ = LossScaler(limits_of(settings_));
  const auto progress = plan->progress.find(caller_.id);
  if (!plan->restore.empty() && progress != plan->progress.end()) {
    clock_ = Clock(static_cast<std::uint64_t>(std::max<std::int64_t>(progress->second.clock, 0)));
    const std::string& state = progress->second.state;
    // Empty: this worker had not done a step when the checkpoint was taken.
    if (!state.empty())
      if (auto status = scaler_.restore(std::as_bytes(std::span(state))); !status)
        fail_with(fmt::format("checkpoint {}: {}", plan->restore, status.error().message));
  }
  make_buffers();

  const std::lock_guard lock(board_.mutex);
  board_.confirmed = clock_;
  board_.report.clock = static_cast<std::int64_t>(clock_.value());
  board_.report.loss_scale = scaler_.scale();
}

void SessionImpl::make_buffers() {
  const bool checksum = settings_.checksum.value != "off";
  if (!gpu_) {
    check(data_->allocate(*layout_, settings_.pull_type(), settings_.gradients(), checksum));
    const GradientCodec codec = settings_.gradients();
    if (codec.codec == Codec::kTopK)
      host_gradients_ = std::make_unique<TopKGradients>(*layout_, codec, data_->payloads());
    else
      host_gradients_ = std::make_unique<HostGradients>(*layout_, codec, data_->payloads());
    if (settings_.local_steps > 1) local_.emplace(*layout_, settings_, *host_gradients_);
    gradients_.emplace(*layout_, options_.accumulate_steps,
                       local_ ? static_cast<GradientTarget&>(*local_) : *host_gradients_,
                       settings_.clip_norm > 0);
    return;
  }
  if (settings_.local_steps > 1)
    fail_with(
        fmt::format("local_steps = {} are taken by the CPU, and this worker's gradients are "
                    "on {}: keep them in host memory",
                    settings_.local_steps, options_.device->name()));
  if (settings_.gradients().codec != Codec::kF16)
    fail_with(
        fmt::format("gradient_codec = {} is encoded by the CPU, and this worker's gradients "
                    "are on {}: use f16, or keep them in host memory",
                    settings_.gradient_codec.value, options_.device->name()));
  const auto choice =
      transport::choose_gpu_path(transport::gpu_path_facts(data_->info(), *gpu_, checksum));
  log::info("weights and gradients on {}: {}", options_.device->name(), choice.text);
  check(data_->allocate_on(gpu_, choice.path, *layout_, settings_.pull_type(), checksum));
  auto gradients =
      DeviceGradients::make(*options_.device, gpu_, data_->device_gradients(), *layout_);
  if (!gradients) fail_with(gradients.error().message);
  device_gradients_ = std::move(*gradients);
  gradients_.emplace(*layout_, options_.accumulate_steps, *device_gradients_,
                     settings_.clip_norm > 0);
}

void SessionImpl::check(Status status) {
  if (!status) fail_with(std::move(status).error().message);
}

void SessionImpl::reach_servers() {
  Lock lock(board_.mutex);
  wait(lock, "the servers", [this] {
    return board_.view.phase != rpc::Phase::GATHERING && board_.view.phase != rpc::Phase::PLANNED;
  });
  if (board_.stopping()) {
    const std::string reason = board_.view.reason;
    lock.unlock();
    fail_with(fmt::format("the job was stopped before training began: {}", reason));
  }
  std::vector<DataPlane::Server> servers(servers_);
  std::size_t known = 0;
  for (const rpc::Member& member : board_.view.servers) {
    if (member.id < 0 || static_cast<std::size_t>(member.id) >= servers_) continue;
    const auto address = std::as_bytes(std::span(member.fabric.address));
    servers[static_cast<std::size_t>(member.id)] = {
        .incarnation = Incarnation(static_cast<std::uint64_t>(member.incarnation)),
        .address = {address.begin(), address.end()},
        .printable = member.fabric.printable};
    ++known;
  }
  lock.unlock();
  if (known != servers_)
    fail_with(fmt::format("the scheduler names {} of the job's {} servers", known, servers_));
  data_->connect(
      {.self = {.job = job_,
                .incarnation = Incarnation(static_cast<std::uint64_t>(caller_.incarnation)),
                .id = options_.rank},
       .servers = std::move(servers),
       .layout = *layout_,
       .pull_dtype = settings_.pull_type(),
       .codec = settings_.gradients(),
       .staleness = settings_.staleness,
       .consistent = settings_.consistent,
       .clock = clock_,
       .transfer_timeout = settings_.transfer_timeout_ms,
       .patience = settings_.member_timeout_ms});
  lock.lock();
  push_initial_if_ours(lock);
}

bool SessionImpl::push_initial_if_ours(Lock& lock) {
  // Once weights came from every server, every server has initial values, whoever gave them.
  if (initial_pushed_ || board_.weights || board_.view.phase != rpc::Phase::RUNNING ||
      board_.view.initializer != caller_.id)
    return false;
  lock.unlock();
  initial_pushed_ = true;
  for (const auto& shard : layout_->shards()) payloads_pushed_ += shard.size();
  std::vector<float> values(layout_->elements());
  for (std::size_t i = 0; i < initial_.size(); ++i)
    std::copy(initial_[i].begin(), initial_[i].end(),
              values.begin() + static_cast<std::ptrdiff_t>(layout_->tensors()[i].begin));
  if (auto status = data_->push_initial(values); !status) fail_with(status.error().message);
  lock.lock();
  return true;
}

template <typename Ready>
void SessionImpl::wait(Lock& lock, const std::string& waiting, Ready ready) {
  TimePoint explain = MonotonicClock::now() + kExplainFirst;
  while (true) {
    if (board_.failure) throw_failure(lock);
    if (ready()) return;
    if (layout_ && push_initial_if_ours(lock)) continue;
    if (board_.changed.wait_until(lock, explain) != std::cv_status::timeout) continue;
    explain = MonotonicClock::now() + kExplainAgain;
    // Without the lock: the endpoint's thread may need it to make room for the question.
    lock.unlock();
    data_->explain(waiting);
    lock.lock();
  }
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
      return stopping || board_.weights == clock_;
    });
    board_.report.seconds_waiting += seconds_between(from, MonotonicClock::now());
  }
  if (stopping) return false;
  initial_.clear();
  if (local_ && local_->done() == 0) local_->begin_round(data_->weights());
  if (gpu_) {
    check(gpu_->before_program());
    device_gradients_->begin_step();
  }
  if (host_gradients_) host_gradients_->begin_step(static_cast<float>(scaler_.scale()));
  gradients_->begin_step();
  skip_ = poisoned_ = false;
  phase_ = Phase::kInStep;
  if (faults_.due(Injection::Kind::kPause, clock_)) raise(SIGSTOP);
  step_began_ = MonotonicClock::now();
  return true;
}

void SessionImpl::check_parameter(Parameter parameter, std::string_view call) const {
  if (!layout_ || parameter.index() >= declared_.size())
    throw SessionError(
        fmt::format("{}: {}() of a parameter that is not of this session, or before "
                    "start()",
                    who(), call));
}

WeightsInfo SessionImpl::weights_info(Parameter parameter) const {
  check_parameter(parameter, "weights_info");
  const std::lock_guard lock(board_.mutex);
  WeightsInfo info;
  if (board_.versions.empty()) return info;  // none have come yet
  info.bound = {board_.bound == transport::kUnboundedStaleness ? Bound::kInfinite : board_.bound};
  bool first = true;
  for (PartitionId p : layout_->tensors()[parameter.index()].parts) {
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
  check_parameter(parameter, "weights");
  if (on_device())
    throw SessionError(
        fmt::format("{}: weights() of a session on a device: use device_weights()", who()));
  const Layout::Tensor& tensor = layout_->tensors()[parameter.index()];
  const std::size_t width = size_of(settings_.pull_type());
  return data_->weights().subspan(tensor.begin * width, tensor.elements * width);
}

const std::byte* SessionImpl::device_weights(Parameter parameter) const {
  check_parameter(parameter, "device_weights");
  if (!on_device())
    throw SessionError(
        fmt::format("{}: device_weights() of a session on the host: use weights()", who()));
  const Layout::Tensor& tensor = layout_->tensors()[parameter.index()];
  return data_->device_weights() + tensor.begin * size_of(settings_.pull_type());
}

void SessionImpl::push(Parameter parameter, std::span<const float> gradient) {
  if (on_device() && !gradient.empty())
    fail_with("a gradient on the host was pushed, and this session is on a device");
  add(parameter, gradient);
}

void SessionImpl::push(Parameter parameter, DeviceGradient gradient) {
  if (!on_device() && gradient.elements != 0)
    fail_with("a gradient on a device was pushed, and this session is on the host");
  add(parameter, {gradient.data, gradient.elements});
}

void SessionImpl::add(Parameter parameter, std::span<const float> gradient) {
  check_parameter(parameter, "push");
  check_not_failed();
  const Declared& declared = declared_[parameter.index()];
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

  switch (gradients_->add(parameter.index(), gradient, poison)) {
    case GradientBuffer::Added::kMore:
      return;
    case GradientBuffer::Added::kTooOften:
      fail_with(fmt::format("parameter {} was pushed {} times in step {}: accumulate_steps is {}",
                            declared.name, options_.accumulate_steps + 1, clock_.value(),
                            options_.accumulate_steps));
    case GradientBuffer::Added::kNotFinite:
      skip_ = true;
      return;
    case GradientBuffer::Added::kComplete:
      break;
  }
  // Of a step that will be skipped nothing further needs to travel.
  if (!skip_ && gradients_->ready_elements() >= kPushTogether) push_ready();
}

void SessionImpl::push_ready() {
  if (local_) return;
  auto parts = gradients_->take_ready();
  if (parts.empty()) return;
  push_parts(std::move(parts));
}

void SessionImpl::push_parts(std::vector<PartitionId> parts) {
  payloads_pushed_ += parts.size();
  const auto scale = static_cast<float>(scaler_.scale());
  if (!device_gradients_) return data_->push(std::move(parts), scale);
  check(device_gradients_->publish(
      parts, [this, parts, scale]() mutable { data_->push(std::move(parts), scale); }));
}

// A gradient that is not finite shows when the device is done with all of them.
void SessionImpl::settle_device() {
  if (!device_gradients_) return;
  if (!skip_) push_ready();
  const auto finite = device_gradients_->finish();
  if (!finite) fail_with(finite.error().message);
  skip_ = skip_ || !*finite;
}

StepResult SessionImpl::commit(const StepInfo& info) {
  check_not_failed();
  if (phase_ != Phase::kInStep)
    fail_with("commit() was called outside a step: call begin_step() first");
  obey_kill();
  if (const auto missing = gradients_->first_incomplete())
    fail_with(fmt::format("commit() of step {}: parameter {} was pushed {} of {} times",
                          clock_.value(), declared_[*missing].name, gradients_->pushes(*missing),
                          options_.accumulate_steps));
  settle_device();
  obey_slowdown();
  const auto scale = static_cast<float>(scaler_.scale());  // of this step
  if (auto status = scaler_.finished(!skip_); !status)
    fail_with(fmt::format("step {}: {}", clock_.value(), status.error().message));
  if (skip_)
    log::info("skipped step {}: a gradient is not finite; the loss scale is {} now", clock_.value(),
              scaler_.scale());
  // The gradients left before their norm was known: the servers scale them down when they undo the
  // loss scale.
  const double norm = skip_ ? 0 : gradients_->norm() / scale;
  const double factor = norm > settings_.clip_norm ? settings_.clip_norm / norm : 1;
  if (host_gradients_) host_gradients_->end_step(!skip_);
  std::vector<PartitionId> rest;
  if (!skip_) rest = gradients_->take_ready();
  const float clip = std::max(static_cast<float>(factor), std::numeric_limits<float>::min());
  if (local_) {
    local_->step(scale / clip, skip_, info.samples, data_->own_weights());
    if (local_->done() == local_->per_round()) end_round();
  } else {
    payloads_pushed_ += rest.size();
    data_->end_step(std::move(rest), scale, skip_ ? Ending::kAbandon : Ending::kCommit,
                    info.samples, scaler_.save(), clip);
    clock_ = clock_.next();
  }
  phase_ = Phase::kBetweenSteps;

  const std::lock_guard lock(board_.mutex);
  rpc::WorkerReport& report = board_.report;
  report.clock = static_cast<std::int64_t>(clock_.value());
  report.samples += info.samples;
  report.skipped_steps += skip_ ? 1 : 0;
  report.loss = info.loss;
  report.epoch = info.epoch;
  report.loss_scale = scaler_.scale();
  return {.skipped = skip_, .loss_scale = scaler_.scale(), .gradient_norm = norm};
}

// The change of the weights goes out as a gradient would.
void SessionImpl::end_round() {
  if (!local_ || local_->done() == 0) return;
  const std::uint32_t samples = local_->samples();
  const std::optional<float> scale = local_->end_round(data_->own_weights());
  if (!scale)
    log::warning(
        "dropped round {} of local steps: its weights are not finite; lower "
        "local_learning_rate",
        clock_.value());
  std::vector<PartitionId> parts;
  if (scale)
    for (const auto& shard : layout_->shards())
      parts.insert(parts.end(), shard.begin(), shard.end());
  payloads_pushed_ += parts.size();
  data_->end_step(std::move(parts), scale.value_or(1), scale ? Ending::kCommit : Ending::kAbandon,
                  samples, scaler_.save(), 1);
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
  if (gpu_) {
    lock.unlock();
    check(gpu_->before_program());
    lock.lock();
  }
  board_.report.seconds_waiting += seconds_between(from, MonotonicClock::now());
}

void SessionImpl::stop(const std::string& reason) {
  if (phase_ != Phase::kBetweenSteps && phase_ != Phase::kInStep)
    fail_with("stop() was called before start() or after finish()");
  auto status = insist(settings_.member_timeout_ms, [&] {
    return control_->stop(caller_, fmt::format("{}: {}", who(), reason));
  });
  if (!status) fail_with(fmt::format("could not stop the job: {}", status.error().message));
}

void SessionImpl::finish(const std::map<std::string, double>& metrics) {
  if (phase_ == Phase::kDeclaring) fail_with("finish() was called before start()");
  if (phase_ == Phase::kFinished) fail_with("finish() was called twice");
  if (phase_ == Phase::kInStep && gradients_->touched())
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
    board_.report.metrics = metrics;
    board_.finishing = true;
    board_.changed.notify_all();
    report = board_.report;
  }
  auto status =
      insist(settings_.member_timeout_ms, [&] { return control_->finish(caller_, report); });
  if (!status) fail_with(fmt::format("could not finish: {}", status.error().message));
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
  if (board_.failure) throw_failure(lock);
}

// Between the pushes of the step: half of the parameters are the servers' already.
void SessionImpl::obey_kill() {
  if (!faults_.due(Injection::Kind::kKill, clock_)) return;
  if (gradients_->complete() < std::max<std::size_t>(gradients_->wanted() / 2, 1)) return;
  if (!skip_) push_ready();
  Lock lock(board_.mutex);
  board_.changed.wait_for(lock, kKillPatience,
                          [this] { return board_.payloads_taken >= payloads_pushed_; });
  raise(SIGKILL);
}

void SessionImpl::check_not_failed() {
  Lock lock(board_.mutex);
  if (board_.failure) throw_failure(lock);
}

void SessionImpl::tell(Lock& lock) noexcept {
  if (!board_.failure || board_.failure->told) return;
  board_.failure->told = true;
  const std::string text = board_.failure->text;
  lock.unlock();
  if (auto status = control_->fault(caller_, text); !status)
    log::warning("could not tell the scheduler: {}", status.error().message);
}

void SessionImpl::throw_failure(Lock& lock) {
  const std::string text = board_.failure->text;
  tell(lock);
  throw SessionError(fmt::format("{}: {}", who(), text));
}

void SessionImpl::fail_with(std::string text) {
  board_.fail(std::move(text), false);
  Lock lock(board_.mutex);
  throw_failure(lock);
}

}  // namespace leeway::worker
