// Several optimizer steps of a worker's own between two pushes (local_steps; docs/consistency.md,
// "Local steps"): what a round of them starts from, the steps, and the change that travels.
//
//   round:  start = the weights pulled, as FP32; local = start; the local optimizer's state is zero
//   step:   local moves by the local optimizer's formula (kernels/optimizer.h); weights = local in
//           the pull dtype
//   end:    start - local, times a power of two that suits FP16, in place of a gradient: the
//           servers' optimizer takes it for one (Douillard et al. 2023, DiLoCo, algorithm 1)
//
// State that starts at zero with each round is in no checkpoint, and a resumed run is the run all
// the same. Called from the program's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/job_settings.h"
#include "kernels/optimizer.h"
#include "worker/gradient_buffer.h"
#include "worker/layout.h"

namespace leeway::worker {

class LocalSteps final : public GradientTarget {
 public:
  // Rounds end in `travels`. Both outlive this.
  LocalSteps(const Layout& layout, const JobSettings& settings, GradientTarget& travels);

  // Keeps the gradient of the step, as FP32.
  bool encode(const Layout::Tensor& tensor, std::span<const float> gradient, float factor) override;
  std::span<const float> add_up(std::size_t parameter, std::span<const float> gradient,
                                bool first) override {
    return travels_.add_up(parameter, gradient, first);
  }
  void square(std::size_t parameter, std::span<const float> gradient) override {
    travels_.square(parameter, gradient);
  }
  double squares() override { return travels_.squares(); }

  // `weights`, here and below: the session's buffer, flat as in the layout.
  void begin_round(std::span<const std::byte> weights);
  // One step by the gradients kept, which are of `scale` times the loss; or, `skipped`, none.
  void step(float scale, bool skipped, std::uint32_t samples, std::span<std::byte> weights);
  // Ends the round. The scale of what travels, or nothing when an element is not finite. `weights`
  // are those that the round began with again: of the next ones, servers write what changed there.
  std::optional<float> end_round(std::span<std::byte> weights);

  std::uint64_t per_round() const noexcept { return per_round_; }
  std::uint64_t done() const noexcept { return done_; }  // in this round
  std::uint32_t samples() const noexcept { return samples_; }

 private:
  const Layout& layout_;
  GradientTarget& travels_;
  const std::uint64_t per_round_;
  const Optimizer optimizer_;
  const kernels::Hyper hyper_;
  const Dtype dtype_;
  std::uint64_t done_ = 0;
  std::uint64_t updates_ = 0;  // of this round: steps that were not skipped
  std::uint32_t samples_ = 0;  // of these
  std::vector<float> start_, local_, gradient_;
  std::vector<float> state_[2];
};

}  // namespace leeway::worker
