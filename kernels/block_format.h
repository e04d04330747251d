// The formats with block scales, as constants, and the rule by which a block gets its scale.
// Included by the encoders alone; codec.h says what they mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace leeway::kernels {

struct BlockScale {
  std::byte biased;  // E8M0: 2^(biased - 127)
  float inverse;     // 2^(127 - biased)
};

// kExponent: that of the largest element. kLargestMantissa: its mantissa, as FP32 has it.
template <int kExponent, std::uint32_t kLargestMantissa>
struct BlockFormat {
  // The smallest scale that brings `most`, the block's largest magnitude, into the format's range;
  // never below 2^-126. Of an infinity or a NaN: some scale. The template parameter gives every
  // instruction set an instance of its own (simd.h).
  template <typename InstructionSet>
  static BlockScale scale_of(float most) {
    std::uint32_t bits;
    std::memcpy(&bits, &most, sizeof(bits));
    int biased = static_cast<int>((bits >> 23) & 0xFFu) - kExponent +
                 ((bits & 0x7FFFFFu) > kLargestMantissa ? 1 : 0);
    biased = biased < 1 ? 1 : biased > 254 ? 254 : biased;
    const std::uint32_t inverse_bits =
        biased == 254 ? 0x00400000u : static_cast<std::uint32_t>(254 - biased) << 23;
    BlockScale scale{static_cast<std::byte>(biased), 0.0f};
    std::memcpy(&scale.inverse, &inverse_bits, sizeof(inverse_bits));
    return scale;
  }
};

struct E4m3 : BlockFormat<8, 0x600000> {  // 448 = 1.75 * 2^8
  static constexpr bool kIsInteger = false;
  static constexpr int kMantissa = 3, kBias = 7;
};
struct E5m2 : BlockFormat<15, 0x600000> {  // 57344 = 1.75 * 2^15
  static constexpr bool kIsInteger = false;
  static constexpr int kMantissa = 2, kBias = 15;
};
struct Int8 : BlockFormat<0, 0x7E0000> {  // 127 / 64
  static constexpr bool kIsInteger = true;
};

}  // namespace leeway::kernels
