// kernels/gradient.h a vector at a time: what the fused update sums. Included by optimizer_simd.h.
#pragma once

#include "kernels/gradient.h"
#include "kernels/simd_tail.h"

namespace leeway::kernels::simd {

template <typename V, Dtype kDtype>
typename V::F load_gradient(const std::byte* data, std::size_t i) {
  if constexpr (kDtype == Dtype::kF32)
    return V::load(reinterpret_cast<const float*>(data) + i);
  else if constexpr (kDtype == Dtype::kF16)
    return V::from_half(V::load_packed(data + i * 2));
  else
    return V::from_bfloat16(V::load_packed(data + i * 2));
}

// sums[0, count) (+)= data * inverse_scale; what lies behind, up to a full vector, is scratch.
template <typename V, Dtype kDtype, bool kFirst>
void add_gradient(const std::byte* data, float inverse_scale, std::size_t count, float* sums) {
  const auto scale = V::set(inverse_scale);
  const auto add = [&](const std::byte* from, std::size_t at, float* to) {
    // 0 + x even for the first: it turns -0 into +0, as the contract's g = 0 does.
    const auto before = kFirst ? V::set(0.0f) : V::load(to);
    V::store(to, before + load_gradient<V, kDtype>(from, at) * scale);
  };
  std::size_t i = 0;
  for (; i + V::kWidth <= count; i += V::kWidth) add(data, i, sums + i);
  if (i == count) return;
  constexpr std::size_t kBytes = kDtype == Dtype::kF32 ? 4 : 2;
  Padded<V, float> padded;  // room for either size
  std::memcpy(padded.values, data + i * kBytes, (count - i) * kBytes);
  add(reinterpret_cast<const std::byte*>(padded.values), 0, sums + i);
}

template <typename V, bool kFirst>
void add_gradient(const Gradient& gradient, std::size_t at, std::size_t count, float* sums) {
  const float scale = gradient.inverse_scale;
  if (gradient.dtype == Dtype::kF16)
    add_gradient<V, Dtype::kF16, kFirst>(gradient.data + at * 2, scale, count, sums);
  else if (gradient.dtype == Dtype::kBf16)
    add_gradient<V, Dtype::kBf16, kFirst>(gradient.data + at * 2, scale, count, sums);
  else
    add_gradient<V, Dtype::kF32, kFirst>(gradient.data + at * 4, scale, count, sums);
}

}  // namespace leeway::kernels::simd
