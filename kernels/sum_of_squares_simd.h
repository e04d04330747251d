// The vector version of kernels/sum_of_squares.h. Included by simd.h alone.
#pragma once

#include "kernels/cpu_kernels.h"
#include "kernels/simd_tail.h"
#include "kernels/sum_of_squares.h"

namespace leeway::kernels::simd {

template <typename V>
double sum_of_squares(const float* in, std::size_t elements) {
  constexpr std::size_t kParts = kNormLanes / V::kWidth;
  double total = 0;
  for (std::size_t at = 0; at < elements; at += kNormBlock) {
    const std::size_t count = elements - at < kNormBlock ? elements - at : kNormBlock;
    typename V::F sums[kParts];
    for (auto& sum : sums) sum = V::set(0.0f);
    std::size_t i = 0;
    const auto add = [&](const float* from) {
      for (std::size_t part = 0; part < kParts; ++part) {
        const auto x = V::load(from + part * V::kWidth);
        sums[part] = sums[part] + x * x;
      }
    };
    for (; i + kNormLanes <= count; i += kNormLanes) add(in + at + i);
    if (i < count) {  // zeros change no sum
      alignas(64) float padded[kNormLanes] = {};
      std::memcpy(padded, in + at + i, (count - i) * sizeof(float));
      add(padded);
    }
    alignas(64) float lanes[kNormLanes];
    for (std::size_t part = 0; part < kParts; ++part)
      V::store(lanes + part * V::kWidth, sums[part]);
    double block = 0;
    for (const float lane : lanes) block = block + static_cast<double>(lane);
    total = total + block;
  }
  return total;
}

}  // namespace leeway::kernels::simd
