#include "kernels/weighted_sum.h"

#include <cstddef>

namespace leeway::kernels {

void weighted_sum(float a, std::span<const float> x, float b, std::span<const float> y,
                  std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = a * x[i] + b * y[i];
}

}  // namespace leeway::kernels
