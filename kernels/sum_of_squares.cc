#include "kernels/sum_of_squares.h"

#include <algorithm>

#include "kernels/cpu_kernels.h"
#include "kernels/scalar.h"

namespace leeway::kernels {

double scalar::sum_of_squares(const float* in, std::size_t elements) {
  double total = 0;
  for (std::size_t at = 0; at < elements; at += kNormBlock) {
    const std::size_t count = std::min(kNormBlock, elements - at);
    float lanes[kNormLanes] = {};
    for (std::size_t i = 0; i < count; ++i)
      lanes[i % kNormLanes] = lanes[i % kNormLanes] + in[at + i] * in[at + i];
    double block = 0;
    for (const float lane : lanes) block = block + static_cast<double>(lane);
    total = total + block;
  }
  return total;
}

double sum_of_squares(std::span<const float> values) {
  return cpu_kernels().sum_of_squares(values.data(), values.size());
}

}  // namespace leeway::kernels
