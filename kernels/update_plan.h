// One update with everything that is the same for all elements computed beforehand, and the
// formula of one element. The scalar reference and the CUDA kernel both run step_element();
// the SIMD versions are checked against it bit by bit.
//
// Plain data, so that it can be a kernel's parameter. Lives during one call.
#pragma once

#include <cmath>

#include "kernels/optimizer.h"

#ifdef __CUDACC__
#define LEEWAY_HOST_DEVICE __host__ __device__
#else
#define LEEWAY_HOST_DEVICE
#endif

namespace leeway::kernels {

struct UpdatePlan {
  Optimizer optimizer = Optimizer::kSgd;
  Dtype publish_dtype = Dtype::kF16;
  float weight = 1.0f;
  float learning_rate = 0.0f;
  float momentum = 0.0f;
  float beta1 = 0.0f;
  float one_minus_beta1 = 0.0f;
  float beta2 = 0.0f;
  float one_minus_beta2 = 0.0f;
  float epsilon = 0.0f;
  float weight_decay = 0.0f;
  float step_size = 0.0f;
  float root_correction = 0.0f;
  const Gradient* gradients = nullptr;
  std::size_t gradient_count = 0;
  std::size_t elements = 0;
  float* master = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  std::byte* publish = nullptr;
};

UpdatePlan plan_update(Optimizer optimizer, const Hyper& hyper, const UpdateArgs& args);

// The new weight from the gradient sum g (before `weight`) and the old weight; m and v are updated.
template <Optimizer kOptimizer>
LEEWAY_HOST_DEVICE inline float step_element(const UpdatePlan& plan, float g, float w, float& m,
                                             float& v) {
  g = g * plan.weight;
  if (plan.weight_decay != 0.0f) g = g + plan.weight_decay * w;
  if constexpr (kOptimizer == Optimizer::kSgd) {
    return w - plan.learning_rate * g;
  } else if constexpr (kOptimizer == Optimizer::kMomentum) {
    m = plan.momentum * m + g;
    return w - plan.learning_rate * m;
  } else {
    m = plan.beta1 * m + plan.one_minus_beta1 * g;
    v = plan.beta2 * v + (plan.one_minus_beta2 * g) * g;
    return w - (plan.step_size * m) / (sqrtf(v) * plan.root_correction + plan.epsilon);
  }
}

}  // namespace leeway::kernels
