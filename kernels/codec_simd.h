// Vector versions of the encoders with block scales (kernels/codec.h), over the vector type V.
// Included by simd.h alone.
#pragma once

#include "kernels/block_format.h"
#include "kernels/cpu_kernels.h"
#include "kernels/simd_tail.h"

namespace leeway::kernels::simd {

constexpr std::size_t kBlock = kScaleBlock;

// One block of 32 elements. True when all are finite.
template <typename V, typename Format>
bool encode_block(const float* in, float scale, std::byte* out, std::byte* exponent) {
  const auto factor = V::set(scale);
  auto most = V::set(0.0f);
  auto bad = V::none();
  const auto infinity = V::set(__builtin_inff());
  for (std::size_t i = 0; i < kBlock; i += V::kWidth) {
    const auto magnitude = V::absolute(V::load(in + i) * factor);
    bad = V::any_of(bad, V::not_less(magnitude, infinity));
    most = V::max(magnitude, most);
  }
  const auto [biased, inverse] = Format::template scale_of<V>(V::largest(most));
  *exponent = biased;
  const auto shrink = V::set(inverse);
  for (std::size_t i = 0; i < kBlock; i += V::kWidth) {
    const auto x = V::load(in + i) * factor * shrink;
    if constexpr (Format::kIsInteger)
      V::store_int8(out + i, V::clamp(x * V::set(64.0f), V::set(-127.0f), V::set(127.0f)));
    else
      V::template store_fp8<Format::kMantissa, Format::kBias>(out + i, x);
  }
  return !V::any(bad);
}

template <typename V, typename Format>
bool encode_all(const float* in, std::size_t elements, float scale, std::byte* out,
                std::byte* scales) {
  bool finite = true;
  std::size_t i = 0;
  for (; i + kBlock <= elements; i += kBlock)
    finite &= encode_block<V, Format>(in + i, scale, out + i, scales + i / kBlock);
  if (i == elements) return finite;
  float padded[kBlock] = {};
  std::byte codes[kBlock];
  std::memcpy(padded, in + i, (elements - i) * sizeof(float));
  finite &= encode_block<V, Format>(padded, scale, codes, scales + i / kBlock);
  std::memcpy(out + i, codes, elements - i);
  return finite;
}

template <typename V>
bool encode_blocks(Codec codec, const float* in, std::size_t elements, float scale, std::byte* out,
                   std::byte* scales) {
  if (codec == Codec::kFp8E4m3) return encode_all<V, E4m3>(in, elements, scale, out, scales);
  if (codec == Codec::kFp8E5m2) return encode_all<V, E5m2>(in, elements, scale, out, scales);
  return encode_all<V, Int8>(in, elements, scale, out, scales);
}

}  // namespace leeway::kernels::simd
