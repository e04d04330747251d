// One worker's gradient of a partition as the fused update reads it, and its elements one at a
// time. What the bytes mean is said in codec.h. The vector version is gradient_simd.h; the device
// runs the same functions as the scalar reference; all give the same bits.
//
// Safe on any bytes: nothing outside of the payload is read and nothing outside of the sums
// written, whatever scales or indices it holds.
//
// Plain data, so that it can be a kernel's parameter. The payload lives as long as the call.
#pragma once

#include <cstddef>
#include <cstring>

#include "common/codec.h"
#include "common/half.h"
#include "kernels/host_device.h"

namespace leeway::kernels {

struct Gradient {
  const std::byte* data = nullptr;  // elements; kTopK: indices
  Codec codec = Codec::kF16;
  float inverse_scale = 1.0f;        // 1 / the scale that the worker multiplied by
  const std::byte* extra = nullptr;  // block scales, or the values of kTopK
  std::uint32_t kept = 0;            // kTopK
  // The published weights that it was computed on, or null: only with delay_compensation.
  const std::byte* then = nullptr;
};

// The parts of a payload of `elements`, which is codec.bytes(elements) long.
Gradient read_gradient(const GradientCodec& codec, const std::byte* payload, std::uint64_t elements,
                       float inverse_scale);

namespace decode {

LEEWAY_HOST_DEVICE inline float from_bits(std::uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

// FP8 of so many bits of mantissa and this bias.
template <int kMantissa, int kBias>
LEEWAY_HOST_DEVICE inline float fp8(std::byte code) {
  const auto byte = static_cast<std::uint32_t>(code);
  const std::uint32_t sign = (byte & 0x80u) << 24;
  const std::uint32_t magnitude = byte & 0x7Fu;
  constexpr std::uint32_t kSmallestBits = (128 - kBias - kMantissa) << 23;
  if (magnitude < (1u << kMantissa)) {  // subnormal: a multiple of the smallest
    const float value = static_cast<float>(magnitude) * from_bits(kSmallestBits);
    return sign != 0 ? -value : value;
  }
  if (kBias == 15 && magnitude >= 0x7Cu)  // E5M2 has infinities and NaNs as FP16 has
    return from_bits(sign | 0x7F800000u | (magnitude & 3u) << 21);
  return from_bits(sign | ((magnitude << (23 - kMantissa)) + ((127u - kBias) << 23)));
}

LEEWAY_HOST_DEVICE inline float block_scale(std::byte exponent) {
  const auto biased = static_cast<std::uint32_t>(exponent);
  return from_bits(biased == 0 ? 0x00400000u : biased << 23);  // 2^-127 is a subnormal
}

// Of indices that ascend, the place of the first that is not below i; of others, any place.
LEEWAY_HOST_DEVICE inline std::uint32_t first_at_least(const std::byte* indices,
                                                       std::uint32_t count, std::uint64_t i) {
  std::uint32_t low = 0;
  while (count > 0) {
    const std::uint32_t half = count / 2;
    std::uint32_t index;
    memcpy(&index, indices + std::size_t{4} * (low + half), sizeof(index));
    if (index < i) {
      low += half + 1;
      count -= half + 1;
    } else {
      count = half;
    }
  }
  return low;
}

// Element i of a payload that is no plain array.
LEEWAY_HOST_DEVICE inline float element(const Gradient& gradient, std::uint64_t i) {
  if (gradient.codec == Codec::kTopK) {
    const std::uint32_t at = first_at_least(gradient.data, gradient.kept, i);
    std::uint32_t index = 0;
    std::uint16_t value = 0;
    if (at == gradient.kept) return 0.0f;
    memcpy(&index, gradient.data + std::size_t{4} * at, sizeof(index));
    if (index != i) return 0.0f;
    memcpy(&value, gradient.extra + std::size_t{2} * at, sizeof(value));
    return from_bits(static_cast<std::uint32_t>(value) << 16);
  }
  const std::byte code = gradient.data[i];
  const float scale = block_scale(gradient.extra[i / kScaleBlock]);
  if (gradient.codec == Codec::kFp8E4m3) return fp8<3, 7>(code) * scale;
  if (gradient.codec == Codec::kFp8E5m2) return fp8<2, 15>(code) * scale;
  return static_cast<float>(static_cast<signed char>(code)) * 0.015625f * scale;
}

}  // namespace decode

// Element i as it travelled, before inverse_scale.
inline float load_element(const Gradient& gradient, std::size_t i) {
  switch (gradient.codec) {
    case Codec::kF32:
      return reinterpret_cast<const float*>(gradient.data)[i];
    case Codec::kF16:
      return to_float(reinterpret_cast<const Half*>(gradient.data)[i]);
    case Codec::kBf16:
      return to_float(reinterpret_cast<const Bfloat16*>(gradient.data)[i]);
    default:
      return decode::element(gradient, i);
  }
}

}  // namespace leeway::kernels
