// kernels/gradient.h on the device.
#pragma once

#include "kernels/device_math.cuh"
#include "kernels/gradient.h"

namespace leeway::kernels::LEEWAY_DEVICE {

// Element i as it travelled, before inverse_scale.
__device__ inline float load_gradient(const Gradient& gradient, std::int64_t i) {
  return load_element(gradient.data, gradient.dtype, i);
}

}  // namespace leeway::kernels::LEEWAY_DEVICE
