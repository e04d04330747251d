// The vector version of bias_gradient, over the vector type V. Included by simd.h alone.
//
// A vector of columns at a time, all rows: the sum stays in a register, and each column is added in
// the order of the rows.
#pragma once

#include "kernels/cpu_kernels.h"
#include "kernels/simd_tail.h"

namespace leeway::kernels::simd {

template <typename V>
void bias_gradient(std::int64_t rows, std::int64_t columns, const Half* dz, float beta, float* db) {
  const auto width = static_cast<std::int64_t>(V::kWidth);
  const auto finish = [beta](typename V::F sum, float* at) {
    V::store(at, beta == 0.0f ? sum : sum + V::set(beta) * V::load(at));
  };
  std::int64_t i = 0;
  for (; i + width <= columns; i += width) {
    auto sum = V::set(0.0f);
    for (std::int64_t row = 0; row < rows; ++row)
      sum = sum + V::from_half(V::load_packed(dz + row * columns + i));
    finish(sum, db + i);
  }
  if (i == columns) return;
  const auto count = static_cast<std::size_t>(columns - i);
  auto sum = V::set(0.0f);
  for (std::int64_t row = 0; row < rows; ++row) {
    const Padded<V, Half> padded(dz + row * columns + i, count);
    sum = sum + V::from_half(V::load_packed(padded.values));
  }
  Padded<V, float> result(db + i, count);
  finish(sum, result.values);
  result.copy_to(db + i, count);
}

}  // namespace leeway::kernels::simd
