// One worker's gradient of a partition as the fused update reads it, and its elements one at a
// time. The vector version is gradient_simd.h, the device's gradient.cuh; all give the same bits.
//
// Plain data, so that it can be a kernel's parameter. The payload lives as long as the call.
#pragma once

#include <cstddef>

#include "common/half.h"
#include "common/tensor.h"

namespace leeway::kernels {

struct Gradient {
  const std::byte* data = nullptr;  // `elements` of dtype
  Dtype dtype = Dtype::kF16;        // kF16, kBf16 or kF32
  float inverse_scale = 1.0f;       // 1 / the scale that the worker multiplied by
  // The published weights that it was computed on, or null: only with delay_compensation.
  const std::byte* then = nullptr;
};

// Element i as it travelled, before inverse_scale.
inline float load_element(const Gradient& gradient, std::size_t i) {
  switch (gradient.dtype) {
    case Dtype::kF32:
      return reinterpret_cast<const float*>(gradient.data)[i];
    case Dtype::kF16:
      return to_float(reinterpret_cast<const Half*>(gradient.data)[i]);
    case Dtype::kBf16:
      return to_float(reinterpret_cast<const Bfloat16*>(gradient.data)[i]);
  }
  return 0.0f;
}

}  // namespace leeway::kernels
