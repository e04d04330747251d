// The vector version of bias_activation, over the vector type V. Included by simd.h alone.
#pragma once

#include "kernels/cpu_kernels.h"
#include "kernels/simd_tail.h"

namespace leeway::kernels::simd {

template <typename V>
void bias_activation(std::int64_t rows, std::int64_t columns, const float* z, const Half* bias,
                     bool relu, Half* out) {
  const auto one = [relu](const float* from, const Half* bias_at) {
    const auto sum = V::load(from) + V::from_half(V::load_packed(bias_at));
    return V::to_half(relu ? V::positive_part(sum) : sum);
  };
  const auto width = static_cast<std::int64_t>(V::kWidth);
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* from = z + row * columns;
    Half* to = out + row * columns;
    std::int64_t i = 0;
    for (; i + width <= columns; i += width) V::store_packed(to + i, one(from + i, bias + i));
    if (i == columns) continue;
    const auto count = static_cast<std::size_t>(columns - i);
    const Padded<V, float> padded(from + i, count);
    const Padded<V, Half> padded_bias(bias + i, count);
    Padded<V, Half> result;
    V::store_packed(result.values, one(padded.values, padded_bias.values));
    result.copy_to(to + i, count);
  }
}

}  // namespace leeway::kernels::simd
