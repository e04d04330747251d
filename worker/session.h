// What a training program links. A session is one worker of one job:
//
//   auto session = leeway::worker::Session::from_environment();
//   auto weight = session->declare("fc.weight", {784, 10}, initial_values);
//   session->start();
//   while (session->begin_step()) {            // weights are now as new as the bound asks
//     ... forward and backward on weight's weights(), loss multiplied by session->loss_scale() ...
//     session->push(weight, gradient);         // as backward makes them, any order
//     session->commit({.samples = batch, .loss = loss});
//   }
//   session->finish({{"test_accuracy", accuracy}});
//
// Called from one thread, the program's. Two threads of the session's own move data (the endpoint's)
// and talk to the scheduler. Every call that can fail for a reason outside the program throws
// SessionError: one line, who, why, what to do; the job has then been told, and the program should
// let it end main with a non-zero exit.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "common/half.h"
#include "common/ids.h"
#include "common/job_settings.h"
#include "common/tensor.h"

namespace leeway::worker {

class SessionError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct SessionOptions {
  std::string scheduler;  // HOST:PORT
  std::string token;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::string fabric = "auto";
  std::string bind = "127.0.0.1";
  std::string inject;                 // common/inject.h
  std::uint32_t accumulate_steps = 1;  // pushes of one tensor that make one step's gradient
  // The program's own values for job settings (learning_rate = "0.05"), used where whoever started
  // the job did not set them. Every worker must give the same.
  std::map<std::string, std::string> settings;
};

// What one step was.
struct StepInfo {
  std::uint32_t samples = 0;  // of this worker, all micro-batches together
  double loss = 0;            // mean over them, unscaled
  double epoch = 0;           // how far through the data, for the progress line
};

struct StepResult {
  bool skipped = false;  // a gradient was not finite: the whole step counts as skipped
  double loss_scale = 1; // of the next step
};

class Parameter;  // a handle; see below

class Session {
 public:
  // LEEWAY_SCHEDULER, LEEWAY_TOKEN, LEEWAY_FABRIC, LEEWAY_BIND, LEEWAY_INJECT, RANK, WORLD_SIZE as
  // leeway-run sets them; `options` gives the rest.
  static std::unique_ptr<Session> from_environment(SessionOptions options = {});
  static std::unique_ptr<Session> join(const SessionOptions& options);
  virtual ~Session() = default;

  virtual std::uint32_t rank() const noexcept = 0;
  virtual std::uint32_t world_size() const noexcept = 0;
  // As effective for this job once start() returned; before that the job's own.
  virtual const JobSettings& settings() const noexcept = 0;

  // Before start(). `initial` is copied; worker 0's values (else the lowest live worker's) become
  // the model's, unless the job resumes. Throws when the name is taken or the sizes disagree.
  virtual Parameter declare(std::string name, Shape shape, std::span<const float> initial) = 0;
  // Joins the others: agrees on the model, learns where it lies. Returns when weights can be pulled.
  virtual void start() = 0;

  // The step about to be computed, i.e. the steps done: after a resume it starts above 0, and data
  // order should depend on it alone.
  virtual Clock clock() const noexcept = 0;
  // Waits for weights that satisfy the staleness contract for step clock(). False when the job is
  // stopping: leave the loop and call finish().
  virtual bool begin_step() = 0;
  virtual double loss_scale() const noexcept = 0;

  // Weights in the job's pull dtype, flat, valid from begin_step() (or pull_final()) to commit().
  virtual std::span<const std::byte> weights(Parameter parameter) const = 0;
  virtual Dtype weights_dtype() const noexcept = 0;

  // A gradient of the loss times loss_scale(), FP32, flat. Cast, checked and sent while the program
  // goes on; the span may be reused when the call returns. With accumulate_steps = k each parameter
  // is pushed k times a step; the mean of the k is what travels. Every parameter with elements must
  // be pushed before commit().
  virtual void push(Parameter parameter, std::span<const float> gradient) = 0;
  // The step is done: it counts on every server or on none. Asks for the next weights at once.
  virtual StepResult commit(const StepInfo& info) = 0;

  // Weights that hold every step of every worker up to clock(); for an evaluation at the end.
  virtual void pull_final() = 0;
  // Leaves the job in good order: all steps are in, `metrics` go into the summary.
  virtual void finish(const std::map<std::string, double>& metrics) = 0;
  // Seconds that the data loader kept the program waiting, for the job's status.
  virtual void note_loading(double seconds) = 0;
};

class Parameter {
 public:
  Parameter() = default;
  explicit Parameter(std::size_t index) : index_(index) {}
  std::size_t index() const noexcept { return index_; }  // in order of declaration

 private:
  std::size_t index_ = 0;
};

}  // namespace leeway::worker
