// Gradients of which the servers get the largest elements alone, and the worker keeps the rest for
// the steps to come (error feedback: Stich et al. 2018, "Sparsified SGD with memory"; Karimireddy
// et al. 2019):
//
//   sum = residual + gradient;  the largest of each part travel as bf16;  residual = sum - sent
//
// With clip_norm the servers apply factor * sent for a gradient that counts as factor * gradient.
// What is left of that is
//
//   residual + factor * gradient - factor * sent = factor * (sum - sent) + (1 - factor) * residual
//
// Two FP32 arrays as long as the model: a step that is skipped leaves the residual as it was. It is
// kept without the loss scale, which changes. Checkpoints hold it (residual_keeper.h).
//
// Called from the program's thread.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "worker/gradient_buffer.h"

namespace leeway::worker {

class TopKGradients final : public HostGradients {
 public:
  TopKGradients(const Layout& layout, const GradientCodec& codec,
                std::span<const std::span<std::byte>> payloads);
  void begin_step(float loss_scale) override;
  bool encode(const Layout::Tensor& tensor, std::span<const float> gradient, float factor) override;
  void end_step(bool committed, float factor) override;
  std::vector<float> residual() override { return residual_; }
  void set_residual(std::span<const float> residual) override {
    residual_.assign(residual.begin(), residual.end());
  }

 private:
  float loss_scale_ = 1.0f;
  std::vector<float> residual_, next_;  // flat as in the layout; what lies between tensors is zero
  std::vector<std::size_t> missing_;    // by part: its tensors that are to come
};

}  // namespace leeway::worker
