// What a session does before its first step: it joins, agrees on the model, takes its place in the
// plan and reaches the servers.
#include <fmt/format.h>

#include <exception>
#include <utility>

#include "common/log.h"
#include "kernels/backend.h"
#include "worker/membership.h"
#include "worker/session_impl.h"

namespace leeway::worker {
namespace {

// Servers of one job that a worker's queues are sized for.
constexpr std::uint32_t kFabricPeers = 64;

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
    : options_(options), line_(control(), options, board_) {
  if (options_.accumulate_steps == 0)
    throw SessionError(fmt::format("{}: accumulate_steps must be at least 1", line_.who()));
  auto faults = OwnFaults::parse(options_.inject, options_.rank);
  if (!faults) throw SessionError(fmt::format("{}: {}", line_.who(), faults.error().message));
  faults_ = std::move(*faults);
  device_ = SessionDevice::open(options_, driver);
  data_.emplace(open_endpoint(options_), board_);
  take_membership(line_.join(register_request(options_, data_->info()), options_.join_timeout));
  control_thread_.emplace(control(),
                          ControlThread::Config{.who = line_.caller(),
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
  if (device_) device_->settle();
  if (phase_ == Phase::kFinished) return;
  board_.fail(std::uncaught_exceptions() > 0 ? "ended by an exception before finish()"
                                             : "left before finish()",
              false);
  Lock lock(board_.mutex);
  line_.tell(lock);
}

void SessionImpl::take_membership(const rpc::Registration& registration) {
  auto membership = membership_from(registration, options_);
  if (!membership) fail_with(membership.error().message);
  options_.world_size = membership->world_size;
  if (options_.rank != membership->rank) {
    options_.rank = membership->rank;
    faults_ = *OwnFaults::parse(options_.inject, options_.rank);  // it was parsed before
  }
  job_ = membership->job;
  servers_ = membership->servers;
  settings_ = std::move(membership->settings);
  checkpoint_dir_ = std::move(membership->checkpoint_dir);
  scaler_ = scaler_for(settings_);
}

Parameter SessionImpl::declare(std::string name, Shape shape, std::span<const float> initial) {
  if (phase_ != Phase::kDeclaring) fail_with(fmt::format("declare({}) came after start()", name));
  const auto parameter = model_.add(std::move(name), std::move(shape), initial);
  if (!parameter) fail_with(parameter.error().message);
  return *parameter;
}

void SessionImpl::start() {
  if (phase_ != Phase::kDeclaring) fail_with("start() was called twice");
  if (model_.empty()) fail_with("no parameter was declared: call declare() before start()");
  line_.declare(model_.to_rpc(options_.settings), settings_.start_timeout_ms);
  const rpc::Plan plan = take_plan();
  make_buffers();
  open_residual(plan);
  reach_servers();
  phase_ = Phase::kBetweenSteps;
}

rpc::Plan SessionImpl::take_plan() {
  {
    Lock lock(board_.mutex);
    wait(lock, "the other workers", [this] { return board_.view.phase != rpc::Phase::GATHERING; });
  }
  rpc::Plan plan = line_.plan(settings_.start_timeout_ms);
  auto settings = settings_from(plan.settings);
  if (!settings) fail_with(settings.error().message);
  settings_ = *std::move(settings);
  auto layout = Layout::make(plan, model_.parameters(), servers_, settings_);
  if (!layout) fail_with(layout.error().message);
  layout_ = *std::move(layout);
  const auto beginning = beginning_of(plan, line_.caller().id, settings_);
  if (!beginning) fail_with(beginning.error().message);
  clock_ = beginning->clock;
  scaler_ = beginning->scaler;

  const std::lock_guard lock(board_.mutex);
  board_.confirmed = clock_;
  board_.report.clock = static_cast<std::int64_t>(clock_.value());
  board_.report.loss_scale = scaler_.scale();
  return plan;
}

void SessionImpl::make_buffers() {
  auto target = device_ ? device_->make_buffers(*data_, *layout_, settings_)
                        : make_host_buffers(*data_, *layout_, settings_);
  if (!target) fail_with(target.error().message);
  gradients_.emplace(*layout_, settings_, options_.accumulate_steps, std::move(*target), *data_);
}

void SessionImpl::open_residual(const rpc::Plan& plan) {
  if (checkpoint_dir_.empty() || settings_.gradients().codec != Codec::kTopK) return;
  const WorkerId self(options_.rank);
  auto keeper =
      ResidualKeeper::open(checkpoint_dir_, self,
                           ResidualKeeper::pieces_of(plan, model_.parameters(), *layout_), board_);
  if (!keeper) fail_with(keeper.error().message);
  keeper_ = std::move(*keeper);
  const auto progress = plan.progress.find(line_.caller().id);
  if (progress != plan.progress.end() && progress->second.residual) {
    const auto residual =
        read_residual(checkpoint_dir_, plan.restore, self, model_.parameters(), *layout_);
    if (!residual) fail_with(residual.error().message);
    gradients_->set_residual(*residual);
  } else if (!plan.restore.empty()) {
    log::warning("checkpoint {} has no residual of worker {}: it begins without one", plan.restore,
                 options_.rank);
  }
  const std::lock_guard lock(board_.mutex);
  board_.keeps_residual = true;
}

void SessionImpl::reach_servers() {
  Lock lock(board_.mutex);
  wait(lock, "the servers", [this] {
    return board_.view.phase != rpc::Phase::GATHERING && board_.view.phase != rpc::Phase::PLANNED;
  });
  const rpc::View view = board_.view;
  lock.unlock();
  // STOPPING, it has its place and ends as the others do: after no step.
  if (view.phase == rpc::Phase::DONE)
    fail_with(fmt::format("the job was stopped before training began: {}", view.reason));
  auto servers = servers_in(view, servers_);
  if (!servers) fail_with(servers.error().message);
  data_->connect(
      {.self = {.job = job_,
                .incarnation = Incarnation(static_cast<std::uint64_t>(line_.caller().incarnation)),
                .id = options_.rank},
       .servers = std::move(*servers),
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
      board_.view.initializer != line_.caller().id)
    return false;
  lock.unlock();
  initial_pushed_ = true;
  for (const auto& shard : layout_->shards()) initial_sent_ += shard.size();
  line_.check(data_->push_initial(model_.initial(*layout_)));
  lock.lock();
  return true;
}

}  // namespace leeway::worker
