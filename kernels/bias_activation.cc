#include "kernels/scalar.h"

namespace leeway::kernels {

void scalar::bias_activation(std::int64_t rows, std::int64_t columns, const float* z,
                             const Half* bias, bool relu, Half* out) {
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      const std::int64_t i = row * columns + column;
      const float sum = z[i] + to_float(bias[column]);
      // Written so that NaN passes: a hidden NaN would train on in silence.
      out[i] = to_half(relu && sum < 0.0f ? 0.0f : sum);
    }
  }
}

}  // namespace leeway::kernels
