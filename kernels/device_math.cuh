// What the CUDA kernels share: indices of a grid stride, elements of a dtype. Device code only.
#pragma once

#include "kernels/launch.h"

namespace leeway::kernels::LEEWAY_DEVICE {

constexpr unsigned kAllLanes = 0xFFFFFFFFu;

__device__ inline std::int64_t first_index() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline std::int64_t index_stride() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}

__device__ inline float bits_to_float(std::uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}
__device__ inline std::uint32_t float_to_bits(float value) {
  std::uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// to_bfloat16() of common/half.h, which nvcc compiles for the host alone.
__device__ inline Bfloat16 float_to_bfloat16(float value) {
  const std::uint32_t bits = float_to_bits(value);
  if (value != value) return Bfloat16{static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  return Bfloat16{static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}

__device__ inline float load_element(const std::byte* data, Dtype dtype, std::int64_t i) {
  if (dtype == Dtype::kF32) return reinterpret_cast<const float*>(data)[i];
  if (dtype == Dtype::kF16) return half_to_float(reinterpret_cast<const Half*>(data)[i]);
  const std::uint32_t bits = reinterpret_cast<const Bfloat16*>(data)[i].bits;
  return bits_to_float(bits << 16);
}

__device__ inline void store_element(std::byte* data, Dtype dtype, std::int64_t i, float value) {
  if (dtype == Dtype::kF32)
    reinterpret_cast<float*>(data)[i] = value;
  else if (dtype == Dtype::kF16)
    reinterpret_cast<Half*>(data)[i] = float_to_half(value);
  else
    reinterpret_cast<Bfloat16*>(data)[i] = float_to_bfloat16(value);
}

}  // namespace leeway::kernels::LEEWAY_DEVICE
