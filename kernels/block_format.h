// The formats with block scales, as constants, the rule by which a block gets its scale, and the
// code of one element: for the scalar reference and the device, which run the same functions.
// Included by the encoders alone; codec.h says what they mean.
//
// Templates, so that every instruction set has instances of its own (simd.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/host_device.h"

namespace leeway::kernels {

struct BlockScale {
  std::byte biased;  // E8M0: 2^(biased - 127)
  float inverse;     // 2^(127 - biased)
};

// kExponent: that of the largest element. kLargestMantissa: its mantissa, as FP32 has it.
template <int kExponent, std::uint32_t kLargestMantissa>
struct BlockFormat {
  // The smallest scale that brings `most`, the block's largest magnitude, into the format's range;
  // never below 2^-126. Of an infinity or a NaN: some scale.
  template <typename InstructionSet>
  LEEWAY_HOST_DEVICE static BlockScale scale_of(float most) {
    std::uint32_t bits;
    memcpy(&bits, &most, sizeof(bits));
    int biased = static_cast<int>((bits >> 23) & 0xFFu) - kExponent +
                 ((bits & 0x7FFFFFu) > kLargestMantissa ? 1 : 0);
    biased = biased < 1 ? 1 : biased > 254 ? 254 : biased;
    const std::uint32_t inverse_bits =
        biased == 254 ? 0x00400000u : static_cast<std::uint32_t>(254 - biased) << 23;
    BlockScale scale{static_cast<std::byte>(biased), 0.0f};
    memcpy(&scale.inverse, &inverse_bits, sizeof(inverse_bits));
    return scale;
  }
};

// Floating point of so many bits of mantissa and this bias.
template <int kMantissaBits, int kExponentBias>
struct SmallFloat {
  static constexpr bool kIsInteger = false;
  static constexpr int kMantissa = kMantissaBits, kBias = kExponentBias;

  // Of x within the format's range, to nearest even.
  template <typename InstructionSet>
  LEEWAY_HOST_DEVICE static std::byte code(float x) {
    std::uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
    std::uint32_t code = 0;
    if (magnitude < (128u - kBias) << 23) {
      // Added to a power of two whose unit in the last place is the smallest subnormal, the
      // magnitude rounds to a multiple of that.
      constexpr std::uint32_t kAnchor = (151u - kBias - kMantissa) << 23;
      float sum, anchor;
      memcpy(&sum, &magnitude, sizeof(sum));
      memcpy(&anchor, &kAnchor, sizeof(anchor));
      sum = sum + anchor;
      memcpy(&code, &sum, sizeof(code));
      code -= kAnchor;
    } else {
      const std::uint32_t odd = (magnitude >> (23 - kMantissa)) & 1u;
      code = ((magnitude + ((1u << (22 - kMantissa)) - 1) + odd) >> (23 - kMantissa)) -
             ((127u - kBias) << kMantissa);
    }
    return static_cast<std::byte>((code & 0xFFu) | (bits >> 24 & 0x80u));
  }
};

struct E4m3 : BlockFormat<8, 0x600000>, SmallFloat<3, 7> {};    // 448 = 1.75 * 2^8
struct E5m2 : BlockFormat<15, 0x600000>, SmallFloat<2, 15> {};  // 57344 = 1.75 * 2^15
struct Int8 : BlockFormat<0, 0x7E0000> {                        // 127 / 64
  static constexpr bool kIsInteger = true;

  template <typename InstructionSet>
  LEEWAY_HOST_DEVICE static std::byte code(float x) {
    constexpr float kAnchor = 12582912.0f;  // 1.5 * 2^23: the unit in the last place is 1
    constexpr std::uint32_t kAnchorBits = 0x4B400000u;
    const float scaled = x * 64.0f;
    const float sum = (scaled < -127.0f ? -127.0f : scaled > 127.0f ? 127.0f : scaled) + kAnchor;
    std::uint32_t bits;
    memcpy(&bits, &sum, sizeof(bits));
    return static_cast<std::byte>((bits - kAnchorBits) & 0xFFu);
  }
};

}  // namespace leeway::kernels
