// Bulk conversions between FP32 and 16-bit floats. Round to nearest even; SIMD chosen at run time.
// Called from any thread. Source and destination do not overlap.
#pragma once

#include <cstddef>
#include <span>

#include "common/half.h"
#include "common/tensor.h"

namespace leeway::kernels {

// out[i] = half(in[i] * scale). Returns false when any result is not finite (an input that is not,
// or a product beyond 65504), in the same pass.
bool scale_to_half(std::span<const float> in, float scale, Half* out);

// out[i] = dtype(in[i]); kF32 copies.
void convert(std::span<const float> in, Dtype dtype, std::byte* out);
// out[i] = float(in[i]).
void widen(const std::byte* in, Dtype dtype, std::span<float> out);
// out[i] = to(float(in[i])): rounds once at most.
void convert(std::size_t elements, const std::byte* in, Dtype from, std::byte* out, Dtype to);

}  // namespace leeway::kernels
