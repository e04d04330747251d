// The program's side of a session: what its thread does between the buffers, the data plane and the
// scheduler. Contract in worker/session.h.
//
// Called from the program's thread alone. What the other threads report is on the board.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "common/monotonic.h"
#include "worker/board.h"
#include "worker/control_plane.h"
#include "worker/control_thread.h"
#include "worker/data_plane.h"
#include "worker/device_gradients.h"
#include "worker/gradient_buffer.h"
#include "worker/layout.h"
#include "worker/local_steps.h"
#include "worker/loss_scaler.h"
#include "worker/own_faults.h"
#include "worker/session.h"

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
    return local_ ? Clock(clock_.value() * local_->per_round() + local_->done()) : clock_;
  }
  bool begin_step() override;
  double loss_scale() const noexcept override { return scaler_.scale(); }
  std::span<const std::byte> weights(Parameter parameter) const override;
  WeightsInfo weights_info(Parameter parameter) const override;
  Dtype weights_dtype() const noexcept override { return settings_.pull_type(); }
  bool on_device() const noexcept override { return gpu_ != nullptr; }
  const std::byte* device_weights(Parameter parameter) const override;
  void push(Parameter parameter, std::span<const float> gradient) override;
  void push(Parameter parameter, DeviceGradient gradient) override;
  StepResult commit(const StepInfo& info) override;
  void pull_final() override;
  void stop(const std::string& reason) override;
  void finish(const std::map<std::string, double>& metrics) override;
  void note_loading(double seconds) override;

 private:
  using Lock = std::unique_lock<std::mutex>;

  void open_gpu(const transport::CudaDriver* driver);
  rpc::Registration join(const transport::EndpointInfo& fabric);
  void take_registration(const rpc::Registration& registration);
  // The same call until it succeeds, is refused, or the scheduler was silent for too long.
  template <typename Call>
  std::invoke_result_t<Call> insist(milliseconds patience, Call call);

  void check_not_failed();
  void agree_on_model();
  void take_plan();
  void make_buffers();
  void reach_servers();
  // True when it did, with the lock released meanwhile.
  bool push_initial_if_ours(Lock& lock);
  // Until `ready` or a failure, which is thrown; `waiting` is for the log line when it takes long.
  template <typename Ready>
  void wait(Lock& lock, const std::string& waiting, Ready ready);

  void check_parameter(Parameter parameter, std::string_view call) const;
  void add(Parameter parameter, std::span<const float> gradient);
  void push_parts(std::vector<PartitionId> parts);
  void settle_device();  // at the end of a step
  void check(Status status);
  void end_round();   // of local steps, when it has begun
  void push_ready();  // the parts that are complete and not sent
  void obey_slowdown();
  void obey_kill();
  void tell(Lock& lock) noexcept;  // the failure on the board, to the scheduler
  [[noreturn]] void throw_failure(Lock& lock);
  [[noreturn]] void fail_with(std::string text);
  std::string who() const;

  enum class Phase { kDeclaring, kBetweenSteps, kInStep, kFinished };

  SessionOptions options_;
  OwnFaults faults_;
  JobSettings settings_;
  rpc::Caller caller_;
  std::uint64_t job_ = 0;
  std::size_t servers_ = 0;

  Phase phase_ = Phase::kDeclaring;
  std::vector<Declared> declared_;
  std::vector<std::vector<float>> initial_;  // until the first weights are in
  std::optional<Layout> layout_;
  LossScaler scaler_{LossScaler::Limits{}};
  std::optional<LocalSteps> local_;  // local_steps above 1
  std::optional<GradientBuffer> gradients_;
  std::shared_ptr<transport::Gpu> gpu_;  // null: all on the host
  Clock clock_;
  bool skip_ = false;      // a gradient of this step is not finite
  bool poisoned_ = false;  // by --inject nonfinite, in this step
  bool initial_pushed_ = false;
  std::size_t payloads_pushed_ = 0;
  TimePoint step_began_;

  // Threads are stopped before what they use goes: the order of these members matters.
  mutable Board board_;  // its mutex is locked to read it, too
  std::unique_ptr<ControlPlane> control_;
  std::optional<DataPlane> data_;
  // Casts the gradients into the data plane's memory: one of the two.
  std::unique_ptr<HostGradients> host_gradients_;
  std::unique_ptr<DeviceGradients> device_gradients_;
  std::optional<ControlThread> control_thread_;
};

}  // namespace leeway::worker
