// The gradients of a step, from the program's pushes to their end at the servers: gathered, encoded
// where the program computes, sent while it goes on, and ended with the step; with local_steps,
// with the round.
//
// Called from the program's thread. Layout, settings and data plane outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/ids.h"
#include "common/job_settings.h"
#include "common/result.h"
#include "worker/data_plane.h"
#include "worker/gradient_buffer.h"
#include "worker/layout.h"
#include "worker/local_steps.h"

namespace leeway::worker {

// Buffers of the host's memory, and what encodes gradients there.
Result<std::unique_ptr<GradientTarget>> make_host_buffers(DataPlane& data, const Layout& layout,
                                                          const JobSettings& settings);

class StepGradients {
 public:
  // `travels` writes what the data plane sends. `accumulate` as SessionOptions::accumulate_steps.
  StepGradients(const Layout& layout, const JobSettings& settings, std::uint32_t accumulate,
                std::unique_ptr<GradientTarget> travels, DataPlane& data);

  void begin_step(float loss_scale);
  // Of a parameter that has not got all its pushes yet. What is complete goes out with its like.
  Status add(std::size_t parameter, std::span<const float> gradient, bool poison);
  Status send_ready();
  // After the last push: sends the rest, and looks at what shows only when a device is done.
  Status settle();
  bool skipped() const noexcept { return skip_; }  // an element was not finite
  // Of the settled step's mean gradient, without the loss scale; 0 without clip_norm.
  double norm() const noexcept { return norm_; }

  struct End {
    Clock clock;  // of the step, or the round
    std::uint32_t samples = 0;
    std::vector<std::byte> state;  // the worker's, for checkpoints
  };
  // Ends the settled step. True when it ended at the servers, too: one of a round's local steps
  // does not, but the last.
  bool end_step(End end);
  // Ends a round of local steps that has begun. False when there is none.
  bool end_round(Clock clock, std::vector<std::byte> state);

  // The program's steps, of which `rounds` have ended at the servers.
  Clock program_clock(Clock rounds) const noexcept;

  // Between steps: what topk keeps for those to come.
  std::vector<float> residual() { return travels_->residual(); }
  void set_residual(std::span<const float> residual) { travels_->set_residual(residual); }

  const GradientBuffer& pushes() const noexcept { return buffer_; }
  std::size_t sent() const noexcept { return sent_; }  // payloads, since the start

 private:
  Status send(std::vector<PartitionId> parts);

  const Layout& layout_;
  const double clip_norm_;
  DataPlane& data_;
  const std::unique_ptr<GradientTarget> travels_;
  std::optional<LocalSteps> local_;  // local_steps above 1
  GradientBuffer buffer_;
  float loss_scale_ = 1;  // of this step
  bool skip_ = false;
  double norm_ = 0;
  std::size_t sent_ = 0;
};

}  // namespace leeway::worker
