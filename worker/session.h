// What a training program links. A session is one worker of one job:
//
//   auto session = leeway::worker::Session::from_environment();
//   auto weight = session->declare("fc.weight", {784, 10}, initial_values);
//   session->start();
//   while (session->clock().value() < steps && session->begin_step()) {
//     // begin_step() has waited until the weights are as new as the bound asks
//     ... forward and backward on session->weights(weight), loss times session->loss_scale() ...
//     session->push(weight, gradient);                // as backward makes them, in any order
//     session->commit({.samples = batch, .loss = loss});
//   }
//   session->finish({{"test_accuracy", accuracy}});
//
// Called from one thread, the program's. Two threads of the session's own move data and talk to the
// scheduler; they sleep when there is nothing to do.
//
// Errors: every call may throw SessionError, one line that says who, why and what to do. The
// scheduler was told by then, so the whole job ends with that cause: let the exception end main
// with a non-zero exit. A session that is destroyed before finish() ends the job, too.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

#include "common/ids.h"
#include "common/job_settings.h"
#include "common/tensor.h"

namespace leeway::kernels {
class Backend;
}

namespace leeway::worker {

class SessionError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A worker that joins a job which trains may take any place that is free.
inline constexpr std::uint32_t kAnyRank = UINT32_MAX;

struct SessionOptions {
  std::string scheduler;  // HOST:PORT
  std::string token;
  std::uint32_t rank = 0;          // or kAnyRank
  std::uint32_t world_size = 1;    // or kAnyRank: whatever the job has
  std::string fabric = "auto";     // auto | efa | verbs | tcp | shm
  std::string bind = "127.0.0.1";  // address that the data plane listens on
  std::string inject;              // faults to suffer, as common/inject.h describes
  // Pushes of each parameter that make one step's gradient: their mean travels.
  std::uint32_t accumulate_steps = 1;
  // The program's own values for job settings (learning_rate = "0.05"), used where whoever started
  // the job did not set them. Every worker must give the same.
  std::map<std::string, std::string> settings;
  // The device that the program computes on, which outlives the session. When its memory is not the
  // host's, weights and gradients are in it: device_weights() and push(Parameter, DeviceGradient)
  // take the place of weights() and push() with a span. Null: the host's.
  kernels::Backend* device = nullptr;
  // How long to look for a scheduler that does not answer. One that refuses is final at once.
  std::chrono::milliseconds join_timeout{60000};
};

// What one step was.
struct StepInfo {
  std::uint32_t samples = 0;  // of this worker, all micro-batches together
  double loss = 0;            // mean over them, not scaled
  double epoch = 0;           // how far through the data, for the progress line
};

struct StepResult {
  bool skipped = false;   // a gradient was not finite: no server applies anything of the step
  double loss_scale = 1;  // of the next step
  // Of this step's gradient over all tensors, without the loss scale and before clipping; 0 when
  // the job has no clip_norm.
  double gradient_norm = 0;
};

// How new the weights of a parameter are.
struct WeightsInfo {
  // Updates that they have had, the initial values counting as one: of the oldest and the newest of
  // the partitions that it lies in.
  Version oldest, newest;
  // Clocks that some live worker's steps are behind this worker's clock; at most the bound.
  std::uint64_t staleness = 0;
  // The bound that was in force: with staleness = auto:LOW..HIGH one of these.
  Bound bound;
};

// FP32 elements in the memory of SessionOptions::device, row-major.
struct DeviceGradient {
  explicit DeviceGradient(const float* d, std::size_t n) noexcept : data(d), elements(n) {}
  const float* data;
  std::size_t elements;
};

// A parameter of the model, as declare() returns it; valid for its session.
class Parameter {
 public:
  Parameter() = default;
  explicit Parameter(std::size_t index) : index_(index) {}
  std::size_t index() const noexcept { return index_; }  // in order of declaration

 private:
  std::size_t index_ = 0;
};

class Session {
 public:
  // Joins the job that leeway-run named in LEEWAY_SCHEDULER, LEEWAY_TOKEN, RANK and WORLD_SIZE (the
  // last two may be "auto");
  // LEEWAY_FABRIC, LEEWAY_BIND and LEEWAY_INJECT win over `options`, which give the rest. Also
  // starts the process's log as "worker.RANK", so call it once a process.
  static std::unique_ptr<Session> from_environment(SessionOptions options = {});
  static std::unique_ptr<Session> join(const SessionOptions& options);
  virtual ~Session() = default;

  // The worker's place, and how many places the job has: those of the workers that it began with,
  // and with --max-workers those of later ones. Neither ever changes.
  virtual std::uint32_t rank() const noexcept = 0;
  virtual std::uint32_t world_size() const noexcept = 0;
  // Of the job; with every program's own values in it once start() returned.
  virtual const JobSettings& settings() const noexcept = 0;

  // Before start(). Adds a parameter; () is the shape of a scalar, and one without elements is
  // allowed. `initial` (row-major) is copied; the values of worker 0 (else of the lowest live
  // worker) become the model's, unless the job resumes. Throws when the name is taken or the sizes
  // disagree.
  virtual Parameter declare(std::string name, Shape shape, std::span<const float> initial) = 0;
  // Agrees with the other workers on the model and reaches its servers; the order of declaration
  // may differ between workers. Returns when every server is ready.
  virtual void start() = 0;

  // The step about to be computed, i.e. the steps done. After a resume, and when the worker joined
  // a job that trains, it starts above 0: let the order of the data depend on it alone, and the
  // resumed run is the run, and no sample is computed by two workers.
  virtual Clock clock() const noexcept = 0;
  // Waits until weights() satisfy the staleness contract for step clock(). False when the job is
  // stopping: leave the loop and call finish().
  virtual bool begin_step() = 0;
  // What to multiply the loss of this step by. A power of two; changes with commit() only.
  virtual double loss_scale() const noexcept = 0;

  // All elements in weights_dtype(), row-major. Readable from begin_step() or pull_final() to the
  // next commit(), which lets servers write newer ones; the address never changes.
  virtual std::span<const std::byte> weights(Parameter parameter) const = 0;
  virtual Dtype weights_dtype() const noexcept = 0;
  // Of weights(), as long as they are readable.
  virtual WeightsInfo weights_info(Parameter parameter) const = 0;
  // Whether weights and gradients are in the memory of SessionOptions::device.
  virtual bool on_device() const noexcept = 0;
  // The same there, and for operations of the device that the program calls before commit().
  virtual const std::byte* device_weights(Parameter parameter) const = 0;

  // The gradient of loss_scale() times the loss, row-major. Cast and checked here, sent while the
  // program goes on; the span may be reused when the call returns. Before commit() every parameter
  // with elements must be pushed, accumulate_steps times.
  virtual void push(Parameter parameter, std::span<const float> gradient) = 0;
  // The same there: cast, checked and sent while the device goes on. Operations that are called
  // later may overwrite the gradient; micro-batches are added up on the device.
  virtual void push(Parameter parameter, DeviceGradient gradient) = 0;
  // The step is done: it counts on every server or on none. Asks for the next weights and returns.
  // Throws when gradients are not finite at the lowest loss scale: the weights stay as they were.
  virtual StepResult commit(const StepInfo& info) = 0;

  // Between steps: waits for weights() that hold every step up to clock() of every worker that
  // still trains, for an evaluation at the end.
  virtual void pull_final() = 0;
  // After start(): ends the whole job in good order, as `leeway-admin stop` does, for a program
  // that has reached what it wanted. begin_step() of every worker returns false soon; call finish()
  // then.
  virtual void stop(const std::string& reason) = 0;
  // Leaves the job in good order: returns when every step is in, on every server, and the scheduler
  // has noted it. `metrics` go into the job's summary. Then the session can only be destroyed.
  virtual void finish(const std::map<std::string, double>& metrics) = 0;
  // Adds seconds that the data loader kept the program waiting, for the job's status.
  virtual void note_loading(double seconds) = 0;
};

}  // namespace leeway::worker
