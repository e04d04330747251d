// The vector version of softmax_cross_entropy, over the vector type V. Included by simd.h alone.
//
// Exponentials and gradients are vectors; a row's sum is taken element by element in order, as in
// the scalar version, so that the width of the vector does not show in the loss.
#pragma once

#include <cmath>

#include "kernels/cpu_kernels.h"
#include "kernels/simd_tail.h"
#include "kernels/softmax_cross_entropy.h"

namespace leeway::kernels::simd {

template <typename V>
typename V::F exp_of_nonpositive(typename V::F x) {
  using C = ExpConstants;
  const auto n = (x * V::set(C::kLog2E) + V::set(C::kRound)) - V::set(C::kRound);
  const auto r = (x - n * V::set(C::kLn2High)) - n * V::set(C::kLn2Low);
  auto p = V::set(C::kC0);
  p = p * r + V::set(C::kC1);
  p = p * r + V::set(C::kC2);
  p = p * r + V::set(C::kC3);
  p = p * r + V::set(C::kC4);
  p = p * r + V::set(C::kC5);
  p = (p * (r * r) + r) + V::set(1.0f);
  // NaN compares as not less, so it survives; what is below the lowest becomes 0.
  return V::where_not(V::less(x, V::set(C::kLowest)), p * V::power_of_two(n));
}

// The row's logits widened into `row`, a multiple of the vector long.
template <typename V>
void widen_row(const Half* in, std::size_t classes, float* row) {
  std::size_t c = 0;
  for (; c + V::kWidth <= classes; c += V::kWidth)
    V::store(row + c, V::from_half(V::load_packed(in + c)));
  if (c == classes) return;
  const Padded<V, Half> padded(in + c, classes - c);
  V::store(row + c, V::from_half(V::load_packed(padded.values)));
}

template <typename V>
void gradient_row(const float* row, std::size_t classes, std::size_t label, float inverse,
                  float gradient_scale, Half* out) {
  const auto scaled = [&](std::size_t c) {
    return V::to_half((V::load(row + c) * V::set(inverse)) * V::set(gradient_scale));
  };
  std::size_t c = 0;
  for (; c + V::kWidth <= classes; c += V::kWidth) V::store_packed(out + c, scaled(c));
  if (c < classes) {
    Padded<V, Half> result;
    V::store_packed(result.values, scaled(c));
    result.copy_to(out + c, classes - c);
  }
  if (label >= classes) return;
  Padded<V, float> one;
  one.values[0] = (row[label] * inverse - 1.0f) * gradient_scale;
  Padded<V, Half> result;
  V::store_packed(result.values, V::to_half(V::load(one.values)));
  result.copy_to(out + label, 1);
}

template <typename V>
void softmax_cross_entropy(std::int64_t rows, std::int64_t classes, const Half* logits,
                           const std::int32_t* labels, float gradient_scale, float* loss_sum,
                           std::int32_t* correct, Half* dlogits, float* row) {
  const auto width = static_cast<std::size_t>(classes);
  for (std::int64_t r = 0; r < rows; ++r) {
    widen_row<V>(logits + r * classes, width, row);
    float largest = -__builtin_inff();
    std::size_t best = width;
    for (std::size_t c = 0; c < width; ++c) {
      if (row[c] > largest) {
        largest = row[c];
        best = c;
      }
    }
    // A negative label becomes a huge one: invalid as well.
    const auto label = static_cast<std::size_t>(static_cast<std::int64_t>(labels[r]));
    const bool valid = label < width;
    const float margin = valid ? largest - row[label] : __builtin_nanf("");
    for (std::size_t c = 0; c < width; c += V::kWidth)
      V::store(row + c, exp_of_nonpositive<V>(V::load(row + c) - V::set(largest)));
    float sum = 0.0f;
    for (std::size_t c = 0; c < width; ++c) sum += row[c];
    *loss_sum += valid ? __builtin_logf(sum) + margin : margin;
    *correct += valid && best == label && sum == sum ? 1 : 0;
    if (dlogits != nullptr)
      gradient_row<V>(row, width, label, 1.0f / sum, gradient_scale, dlogits + r * classes);
  }
}

}  // namespace leeway::kernels::simd
