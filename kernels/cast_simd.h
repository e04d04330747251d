// Vector versions of kernels/cast.h, over the vector type V. Included by simd.h alone.
#pragma once

#include "kernels/cpu_kernels.h"
#include "kernels/simd_tail.h"

namespace leeway::kernels::simd {

// The smallest magnitudes that round to an infinity.
constexpr float kHalfOverflow = 65520.0f;
constexpr float kBfloat16Overflow = 0x1.FFp127f;

template <typename T>
constexpr bool kIsHalf = false;
template <>
inline constexpr bool kIsHalf<Half> = true;

template <typename V, typename T>
bool scale_to(const float* in, std::size_t elements, float scale, T* out) {
  constexpr bool kHalf = kIsHalf<T>;
  const auto factor = V::set(scale);
  const auto limit = V::set(kHalf ? kHalfOverflow : kBfloat16Overflow);
  auto bad = V::none();
  const auto one = [&](const float* from) {
    const auto product = V::load(from) * factor;
    bad = V::any_of(bad, V::not_less(V::absolute(product), limit));
    if constexpr (kHalf)
      return V::to_half(product);
    else
      return V::to_bfloat16(product);
  };
  const auto partial = [&](std::size_t at, std::size_t count) {
    const Padded<V, float> padded(in + at, count);
    Padded<V, T> result;
    V::store_packed(result.values, one(padded.values));
    result.copy_to(out + at, count);
  };
  std::size_t i = 0;
  if (elements * sizeof(T) >= kStreamBytes) {
    i = elements_to_alignment<V>(out, sizeof(T), elements);
    partial(0, i);
    for (; i + V::kWidth <= elements; i += V::kWidth) V::stream_packed(out + i, one(in + i));
    V::fence();
  } else {
    for (; i + V::kWidth <= elements; i += V::kWidth) V::store_packed(out + i, one(in + i));
  }
  if (i < elements) partial(i, elements - i);
  return !V::any(bad);
}

template <typename V>
bool scale_to_half(const float* in, std::size_t elements, float scale, Half* out) {
  return scale_to<V>(in, elements, scale, out);
}

template <typename V>
bool encode_bf16(const float* in, std::size_t elements, float scale, Bfloat16* out) {
  return scale_to<V>(in, elements, scale, out);
}

template <typename V, bool kHalf>
void narrow_all(const float* in, std::size_t elements, std::uint16_t* out) {
  const auto one = [](const float* from) {
    if constexpr (kHalf)
      return V::to_half(V::load(from));
    else
      return V::to_bfloat16(V::load(from));
  };
  std::size_t i = 0;
  for (; i + V::kWidth <= elements; i += V::kWidth) V::store_packed(out + i, one(in + i));
  if (i == elements) return;
  const Padded<V, float> padded(in + i, elements - i);
  Padded<V, std::uint16_t> result;
  V::store_packed(result.values, one(padded.values));
  result.copy_to(out + i, elements - i);
}

template <typename V>
void narrow(const float* in, std::size_t elements, Dtype dtype, std::byte* out) {
  auto* to = reinterpret_cast<std::uint16_t*>(out);
  if (dtype == Dtype::kF16)
    narrow_all<V, true>(in, elements, to);
  else
    narrow_all<V, false>(in, elements, to);
}

template <typename V, bool kHalf>
void widen_all(const std::uint16_t* in, std::size_t elements, float* out) {
  const auto one = [](const std::uint16_t* from) {
    if constexpr (kHalf)
      return V::from_half(V::load_packed(from));
    else
      return V::from_bfloat16(V::load_packed(from));
  };
  std::size_t i = 0;
  for (; i + V::kWidth <= elements; i += V::kWidth) V::store(out + i, one(in + i));
  if (i == elements) return;
  const Padded<V, std::uint16_t> padded(in + i, elements - i);
  Padded<V, float> result;
  V::store(result.values, one(padded.values));
  result.copy_to(out + i, elements - i);
}

template <typename V>
void widen(const std::byte* in, std::size_t elements, Dtype dtype, float* out) {
  const auto* from = reinterpret_cast<const std::uint16_t*>(in);
  if (dtype == Dtype::kF16)
    widen_all<V, true>(from, elements, out);
  else
    widen_all<V, false>(from, elements, out);
}

}  // namespace leeway::kernels::simd
