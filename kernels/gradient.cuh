// kernels/gradient.h on the device.
#pragma once

#include "kernels/device_math.cuh"
#include "kernels/gradient.h"

namespace leeway::kernels::LEEWAY_DEVICE {

// Element i as it travelled, before inverse_scale.
__device__ inline float load_gradient(const Gradient& gradient, std::int64_t i) {
  if (gradient.codec == Codec::kF32) return load_element(gradient.data, Dtype::kF32, i);
  if (gradient.codec == Codec::kF16) return load_element(gradient.data, Dtype::kF16, i);
  if (gradient.codec == Codec::kBf16) return load_element(gradient.data, Dtype::kBf16, i);
  return decode::element(gradient, static_cast<std::uint64_t>(i));
}

}  // namespace leeway::kernels::LEEWAY_DEVICE
