// 16-bit floats as storage types, and their conversions. IEEE round to nearest even, subnormals
// kept, overflow to infinity. Scalar: bulk conversion is kernels/cast.h.
#pragma once

#include <bit>
#include <cstdint>

namespace leeway {

struct Half {
  std::uint16_t bits = 0;
  friend constexpr bool operator==(Half, Half) noexcept = default;
};

struct Bfloat16 {
  std::uint16_t bits = 0;
  friend constexpr bool operator==(Bfloat16, Bfloat16) noexcept = default;
};

constexpr float to_float(Half h) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(h.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (h.bits >> 10) & 0x1Fu;
  const std::uint32_t mantissa = h.bits & 0x3FFu;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  // A subnormal is mantissa * 2^-24, exact in FP32.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -magnitude : magnitude;
}

constexpr Half to_half(float value) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint16_t sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return Half{static_cast<std::uint16_t>(sign | 0x7E00u)};  // NaN
  if (magnitude >= 0x477FF000u)
    return Half{static_cast<std::uint16_t>(sign | 0x7C00u)};  // >= 65520
  if (magnitude < 0x38800000u) {  // below 2^-14: subnormal; adding 0.5 rounds to 2^-24 steps
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return Half{
        static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) & 0x7FFu))};
  }
  const std::uint32_t odd = (magnitude >> 13) & 1u;
  return Half{static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000u + 0xFFFu + odd) >> 13))};
}

constexpr float to_float(Bfloat16 b) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(b.bits) << 16);
}

constexpr Bfloat16 to_bfloat16(float value) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
    return Bfloat16{static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  return Bfloat16{static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}

}  // namespace leeway
