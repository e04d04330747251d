// How the elements of a push travel, and how long that makes them. Both sides compute the size from
// the job's settings and the number of elements: a payload of another size is refused.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "common/tensor.h"

namespace leeway {

// kernels/codec.h says what each does to the numbers. The values are those of the wire.
enum class Codec : std::uint8_t {
  kF16 = 1,
  kF32 = 2,  // initial values alone
  kBf16 = 3,
  kFp8E4m3 = 4,
  kFp8E5m2 = 5,
  kInt8 = 6,
  kTopK = 7,
};

// What a job's gradients may travel as, by the names of its settings.
struct NamedCodec {
  std::string_view name;
  Codec codec;
};
inline constexpr std::array<NamedCodec, 6> kGradientCodecs{{{"f16", Codec::kF16},
                                                            {"bf16", Codec::kBf16},
                                                            {"fp8_e4m3", Codec::kFp8E4m3},
                                                            {"fp8_e5m2", Codec::kFp8E5m2},
                                                            {"int8", Codec::kInt8},
                                                            {"topk", Codec::kTopK}}};

constexpr std::string_view to_string(Codec codec) noexcept {
  for (const NamedCodec& known : kGradientCodecs)
    if (known.codec == codec) return known.name;
  return codec == Codec::kF32 ? "f32" : "?";
}

constexpr bool is_codec(std::uint8_t wire_value) noexcept {
  return wire_value >= static_cast<std::uint8_t>(Codec::kF16) &&
         wire_value <= static_cast<std::uint8_t>(Codec::kTopK);
}

constexpr Codec codec_of(Dtype dtype) noexcept {
  return dtype == Dtype::kF32 ? Codec::kF32 : dtype == Dtype::kF16 ? Codec::kF16 : Codec::kBf16;
}

// Elements that share one scale, in the codecs that have block scales.
inline constexpr std::uint64_t kScaleBlock = 32;

constexpr bool has_block_scales(Codec codec) noexcept {
  return codec == Codec::kFp8E4m3 || codec == Codec::kFp8E5m2 || codec == Codec::kInt8;
}

// A codec with what it needs to know.
struct GradientCodec {
  Codec codec = Codec::kF16;
  double fraction = 0.01;  // kTopK: of the elements of a partition, how many travel; in (0, 1]

  // kTopK: how many of n; at least one, at most all.
  constexpr std::uint64_t kept(std::uint64_t n) const noexcept {
    const double wanted = fraction * static_cast<double>(n);
    const auto floor = static_cast<std::uint64_t>(wanted);
    const std::uint64_t ceil = floor + (static_cast<double>(floor) < wanted ? 1 : 0);
    return ceil < n ? ceil : n;
  }
  // Of n elements on the wire. Layouts:
  //   f32, f16, bf16   n elements of 4 or 2 bytes
  //   block scales     n bytes, one an element | ceil(n / 32) bytes, one a block
  //   top-k            kept * 4 index (u32, ascending) | kept * 2 value (bf16)
  constexpr std::uint64_t bytes(std::uint64_t n) const noexcept {
    if (codec == Codec::kF32) return n * 4;
    if (codec == Codec::kTopK) return kept(n) * 6;
    if (has_block_scales(codec)) return n + (n + kScaleBlock - 1) / kScaleBlock;
    return n * 2;
  }
};

}  // namespace leeway
