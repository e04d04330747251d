// The fused update, an element a thread in grid strides; the formula is update_plan.h's. Compiled
// with --fmad=false: see kernels/optimizer.h, "same bits everywhere".
#include <stdexcept>

#include "kernels/gradient.cuh"

namespace leeway::kernels::LEEWAY_DEVICE {

struct DeviceGradients {
  Gradient list[kMaxDeviceGradients];
};

// Kernels may use the constant, and not call the function.
template <Optimizer kOptimizer>
constexpr int kArrays = state_arrays(kOptimizer);

template <Optimizer kOptimizer>
__global__ void update_kernel(UpdatePlan plan, DeviceGradients gradients) {
  const auto elements = static_cast<std::int64_t>(plan.elements);
  for (std::int64_t i = first_index(); i < elements; i += index_stride()) {
    float g = 0.0f;
    for (std::size_t n = 0; n < plan.gradient_count; ++n) {
      const Gradient& gradient = gradients.list[n];
      const float x = load_gradient(gradient, i) * gradient.inverse_scale;
      g = g +
          (gradient.then == nullptr
               ? x
               : compensate<Scalar>(plan.coefficients.delay_compensation, 0.0f + x, plan.master[i],
                                    0.0f + load_element(gradient.then, plan.publish_dtype, i)));
    }
    float unused = 0.0f;
    float& m = kArrays<kOptimizer> > 0 ? plan.m[i] : unused;
    float& v = kArrays<kOptimizer> > 1 ? plan.v[i] : unused;
    const float w = step_element<kOptimizer, Scalar>(plan.coefficients, g, plan.master[i], m, v);
    plan.master[i] = w;
    if (plan.publish != nullptr) store_element(plan.publish, plan.publish_dtype, i, w);
  }
}

void update(Stream stream, const UpdatePlan& plan) {
  if (plan.gradient_count > kMaxDeviceGradients)
    throw std::invalid_argument("update: more gradients than one launch takes");
  DeviceGradients gradients;
  for (std::size_t n = 0; n < plan.gradient_count; ++n) gradients.list[n] = plan.gradients[n];
  auto* kernel = with_optimizer(
      plan.optimizer, [](auto optimizer) { return &update_kernel<decltype(optimizer)::value>; });
  launch(kernel, shape_for(static_cast<std::int64_t>(plan.elements)), stream, plan, gradients);
}

}  // namespace leeway::kernels::LEEWAY_DEVICE
