// worker/top_k_gradients.h on a GPU, bit by bit: both arrays are in its memory.
//
// Called from the program's thread. The backend and what it is made with outlive it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "worker/layout.h"

namespace leeway::worker {

class DeviceTopK {
 public:
  // `payloads` is device memory, in which the parts' lie at `places`; `not_finite` as
  // kernels::Backend sets it. Throws what the backend does when it has no such memory.
  DeviceTopK(kernels::Backend& backend, const Layout& layout, const GradientCodec& codec,
             std::byte* payloads, const std::vector<Place>& places, std::int32_t* not_finite);

  void begin_step(float loss_scale);
  void encode(const Layout::Tensor& tensor, std::span<const float> gradient, float factor);
  void end_step(bool committed, float factor);
  std::vector<float> residual();
  void set_residual(std::span<const float> residual);

 private:
  kernels::Backend& backend_;
  const Layout& layout_;
  const GradientCodec codec_;
  std::byte* const payloads_;
  const std::vector<Place>& places_;
  std::int32_t* const not_finite_;
  float loss_scale_ = 1.0f;
  kernels::Buffer residual_, next_;   // flat as in the layout; what lies between tensors is zero
  std::vector<std::size_t> missing_;  // by part: its tensors that are to come
  std::vector<kernels::TopKPart> complete_;
};

}  // namespace leeway::worker
