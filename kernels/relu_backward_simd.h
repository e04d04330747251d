// The vector version of relu_backward, over the vector type V. Included by simd.h alone.
#pragma once

#include "kernels/cpu_kernels.h"
#include "kernels/simd_tail.h"

namespace leeway::kernels::simd {

template <typename V>
void relu_backward(std::int64_t elements, const float* da, const Half* activation, Half* dz) {
  const auto one = [](const float* gradient, const Half* active) {
    const auto positive = V::less(V::set(0.0f), V::from_half(V::load_packed(active)));
    return V::to_half(V::where(positive, V::load(gradient)));
  };
  const auto width = static_cast<std::int64_t>(V::kWidth);
  std::int64_t i = 0;
  for (; i + width <= elements; i += width) V::store_packed(dz + i, one(da + i, activation + i));
  if (i == elements) return;
  const auto count = static_cast<std::size_t>(elements - i);
  const Padded<V, float> padded(da + i, count);
  const Padded<V, Half> padded_activation(activation + i, count);
  Padded<V, Half> result;
  V::store_packed(result.values, one(padded.values, padded_activation.values));
  result.copy_to(dz + i, count);
}

}  // namespace leeway::kernels::simd
