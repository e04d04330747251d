// The program's side of a session: what its thread does between the buffers, the data plane and the
// scheduler. Contract in worker/session.h.
//
// Called from the program's thread alone. What the other threads report is on the board.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "common/monotonic.h"
#include "worker/board.h"
#include "worker/control_plane.h"
#include "worker/control_thread.h"
#include "worker/data_plane.h"
#include "worker/declared_model.h"
#include "worker/layout.h"
#include "worker/loss_scaler.h"
#include "worker/own_faults.h"
#include "worker/residual_keeper.h"
#include "worker/scheduler_line.h"
#include "worker/session.h"
#include "worker/session_device.h"
#include "worker/step_gradients.h"

namespace leeway::worker {

// Opens the fabric and joins the job; `control` makes lines to its scheduler. `driver` is CUDA's,
// by default this machine's.
std::unique_ptr<Session> join_with(const SessionOptions& options,
                                   const ControlPlaneFactory& control,
                                   const transport::CudaDriver* driver = nullptr);

class SessionImpl final : public Session {
 public:
  SessionImpl(const SessionOptions& options, const ControlPlaneFactory& control,
              const transport::CudaDriver* driver);
  ~SessionImpl() override;

  std::uint32_t rank() const noexcept override { return options_.rank; }
  std::uint32_t world_size() const noexcept override { return options_.world_size; }
  const JobSettings& settings() const noexcept override { return settings_; }
  Parameter declare(std::string name, Shape shape, std::span<const float> initial) override;
  void start() override;
  Clock clock() const noexcept override {
    return gradients_ ? gradients_->program_clock(clock_) : clock_;
  }
  bool begin_step() override;
  double loss_scale() const noexcept override { return scaler_.scale(); }
  std::span<const std::byte> weights(Parameter parameter) const override;
  WeightsInfo weights_info(Parameter parameter) const override;
  Dtype weights_dtype() const noexcept override { return settings_.pull_type(); }
  bool on_device() const noexcept override { return device_.has_value(); }
  const std::byte* device_weights(Parameter parameter) const override;
  void push(Parameter parameter, std::span<const float> gradient) override;
  void push(Parameter parameter, DeviceGradient gradient) override;
  StepResult commit(const StepInfo& info) override;
  void pull_final() override;
  void stop(const std::string& reason) override;
  void finish(const std::map<std::string, double>& metrics) override;
  void note_loading(double seconds) override;

 private:
  using Lock = SchedulerLine::Lock;
  enum class Phase { kDeclaring, kBetweenSteps, kInStep, kFinished };

  // session_start.cc
  void take_membership(const rpc::Registration& registration);
  rpc::Plan take_plan();
  void make_buffers();
  void open_residual(const rpc::Plan& plan);  // with topk and checkpoints
  void reach_servers();
  // True when it did, with the lock released meanwhile.
  bool push_initial_if_ours(Lock& lock);
  // The same, for a checkpoint's cut at this clock.
  bool keep_residual_if_cut(Lock& lock);

  // Until `ready` or a failure, which is thrown; `waiting` is for the log line when it takes long.
  void wait(Lock& lock, const std::string& waiting, const std::function<bool()>& ready);

  const Layout::Tensor& tensor_of(Parameter parameter, std::string_view call) const;
  void add(Parameter parameter, std::span<const float> gradient);
  void end_round();  // of local steps, when one has begun
  void obey_slowdown();
  void obey_kill();
  [[noreturn]] void fail_with(std::string text) { line_.fail_with(std::move(text)); }

  SessionOptions options_;  // with the rank that the job gave
  OwnFaults faults_;
  JobSettings settings_;
  std::uint64_t job_ = 0;
  std::size_t servers_ = 0;
  std::string checkpoint_dir_;  // "" = none

  Phase phase_ = Phase::kDeclaring;
  DeclaredModel model_;
  std::optional<Layout> layout_;
  LossScaler scaler_{LossScaler::Limits{}};
  Clock clock_;                   // steps that ended at the servers
  bool poisoned_ = false;         // by --inject nonfinite, in this step
  bool initial_pushed_ = false;   // by this worker
  std::size_t initial_sent_ = 0;  // payloads of it
  TimePoint step_began_;

  // Threads are stopped before what they use goes: the order of these members matters.
  mutable Board board_;  // its mutex is locked to read it, too
  SchedulerLine line_;
  std::optional<SessionDevice> device_;  // nothing: all on the host
  std::optional<DataPlane> data_;
  std::optional<StepGradients> gradients_;
  std::unique_ptr<ResidualKeeper> keeper_;  // null without a residual, or without checkpoints
  std::string kept_;                        // the checkpoint that has it
  std::optional<ControlThread> control_thread_;
};

}  // namespace leeway::worker
