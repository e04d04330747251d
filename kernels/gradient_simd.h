// kernels/gradient.h a vector at a time: what the fused update sums. Included by optimizer_simd.h.
#pragma once

#include "kernels/gradient.h"
#include "kernels/simd_tail.h"

namespace leeway::kernels::simd {

// Elements from here on, of one scale where there are scales.
template <typename V, Codec kCodec>
typename V::F load_gradient(const std::byte* from) {
  if constexpr (kCodec == Codec::kF32)
    return V::load(reinterpret_cast<const float*>(from));
  else if constexpr (kCodec == Codec::kF16)
    return V::from_half(V::load_packed(from));
  else if constexpr (kCodec == Codec::kBf16)
    return V::from_bfloat16(V::load_packed(from));
  else if constexpr (kCodec == Codec::kFp8E4m3)
    return V::from_e4m3(from);
  else if constexpr (kCodec == Codec::kFp8E5m2)
    return V::from_e5m2(from);
  else
    return V::from_int8(from) * V::set(0.015625f);
}

template <Codec kCodec>
constexpr std::size_t kElementBytes = kCodec == Codec::kF32                             ? 4
                                      : kCodec == Codec::kF16 || kCodec == Codec::kBf16 ? 2
                                                                                        : 1;

// sums[0, count) (+)= data * inverse_scale; what lies behind, up to a full vector, is scratch.
template <typename V, Codec kCodec, bool kFirst>
void add_plain(const std::byte* data, float inverse_scale, std::size_t count, float* sums) {
  constexpr std::size_t kBytes = kElementBytes<kCodec>;
  const auto scale = V::set(inverse_scale);
  const auto add = [&](const std::byte* from, float* to) {
    // 0 + x even for the first: it turns -0 into +0, as the contract's g = 0 does.
    const auto before = kFirst ? V::set(0.0f) : V::load(to);
    V::store(to, before + load_gradient<V, kCodec>(from) * scale);
  };
  std::size_t i = 0;
  for (; i + V::kWidth <= count; i += V::kWidth) add(data + i * kBytes, sums + i);
  if (i == count) return;
  Padded<V, float> padded;  // room for either size
  std::memcpy(padded.values, data + i * kBytes, (count - i) * kBytes);
  add(reinterpret_cast<const std::byte*>(padded.values), sums + i);
}

// The same of elements [at, at + count), which may begin and end within a block of one scale.
template <typename V, Codec kCodec, bool kFirst>
void add_scaled(const Gradient& gradient, std::size_t at, std::size_t count, float* sums) {
  const auto scale = V::set(gradient.inverse_scale);
  for (std::size_t i = 0; i < count;) {
    const std::size_t block = (at + i) / kScaleBlock;
    const std::size_t block_end = (block + 1) * kScaleBlock - at;
    const std::size_t end = block_end < count ? block_end : count;
    float block_scale;
    const auto biased = static_cast<std::uint32_t>(gradient.extra[block]);
    const std::uint32_t bits = biased == 0 ? 0x00400000u : biased << 23;
    std::memcpy(&block_scale, &bits, sizeof(bits));
    const auto shared = V::set(block_scale);
    const auto term = [&](const std::byte* from) {
      return load_gradient<V, kCodec>(from) * shared * scale;
    };
    for (; i + V::kWidth <= end; i += V::kWidth) {
      const auto before = kFirst ? V::set(0.0f) : V::load(sums + i);
      V::store(sums + i, before + term(gradient.data + at + i));
    }
    if (i == end) continue;
    Padded<V, std::byte> codes(gradient.data + at + i, end - i);
    Padded<V, float> before;
    if constexpr (!kFirst) std::memcpy(before.values, sums + i, (end - i) * sizeof(float));
    V::store(before.values, V::load(before.values) + term(codes.values));
    before.copy_to(sums + i, end - i);
    i = end;
  }
}

// Adding what does not travel would change no sum: it is never -0.
template <typename V, bool kFirst>
void add_top_k(const Gradient& gradient, std::size_t at, std::size_t count, float* sums) {
  if constexpr (kFirst)
    for (std::size_t i = 0; i < count; i += V::kWidth) V::store(sums + i, V::set(0.0f));
  std::uint32_t low = 0;
  const auto index_at = [&](std::uint32_t n) {
    std::uint32_t index;
    std::memcpy(&index, gradient.data + std::size_t{4} * n, sizeof(index));
    return index;
  };
  for (std::uint32_t left = gradient.kept; left > 0;) {
    const std::uint32_t half = left / 2;
    const bool below = index_at(low + half) < at;
    low += below ? half + 1 : 0;
    left = below ? left - half - 1 : half;
  }
  for (; low < gradient.kept; ++low) {
    const std::uint64_t index = index_at(low);
    if (index < at || index >= at + count) return;
    std::uint16_t value;
    std::memcpy(&value, gradient.extra + std::size_t{2} * low, sizeof(value));
    const std::uint32_t bits = static_cast<std::uint32_t>(value) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof(bits));
    sums[index - at] = sums[index - at] + wide * gradient.inverse_scale;
  }
}

template <typename V, bool kFirst>
void add_gradient(const Gradient& gradient, std::size_t at, std::size_t count, float* sums) {
  const float scale = gradient.inverse_scale;
  switch (gradient.codec) {
    case Codec::kF32:
      return add_plain<V, Codec::kF32, kFirst>(gradient.data + at * 4, scale, count, sums);
    case Codec::kF16:
      return add_plain<V, Codec::kF16, kFirst>(gradient.data + at * 2, scale, count, sums);
    case Codec::kBf16:
      return add_plain<V, Codec::kBf16, kFirst>(gradient.data + at * 2, scale, count, sums);
    case Codec::kFp8E4m3:
      return add_scaled<V, Codec::kFp8E4m3, kFirst>(gradient, at, count, sums);
    case Codec::kFp8E5m2:
      return add_scaled<V, Codec::kFp8E5m2, kFirst>(gradient, at, count, sums);
    case Codec::kInt8:
      return add_scaled<V, Codec::kInt8, kFirst>(gradient, at, count, sums);
    case Codec::kTopK:
      return add_top_k<V, kFirst>(gradient, at, count, sums);
  }
}

}  // namespace leeway::kernels::simd
