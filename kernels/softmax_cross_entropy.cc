#include "kernels/softmax_cross_entropy.h"

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/scalar.h"

namespace leeway::kernels {
namespace {

float exp_of_nonpositive(float x) {
  using C = ExpConstants;
  if (!(x >= C::kLowest)) return std::isnan(x) ? x : 0.0f;
  const float n = (x * C::kLog2E + C::kRound) - C::kRound;
  const float r = (x - n * C::kLn2High) - n * C::kLn2Low;
  float p = C::kC0;
  p = p * r + C::kC1;
  p = p * r + C::kC2;
  p = p * r + C::kC3;
  p = p * r + C::kC4;
  p = p * r + C::kC5;
  p = (p * (r * r) + r) + 1.0f;
  return p * std::bit_cast<float>((static_cast<std::int32_t>(n) + 127) << 23);
}

}  // namespace

void scalar::softmax_cross_entropy(std::int64_t rows, std::int64_t classes, const Half* logits,
                                   const std::int32_t* labels, float gradient_scale,
                                   float* loss_sum, std::int32_t* correct, Half* dlogits,
                                   float* row) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const Half* in = logits + r * classes;
    const std::int64_t label = labels[r];
    float largest = -std::numeric_limits<float>::infinity();
    std::int64_t best = -1;
    for (std::int64_t c = 0; c < classes; ++c) {
      const float value = to_float(in[c]);
      if (value > largest) {
        largest = value;
        best = c;
      }
    }
    float sum = 0.0f;
    for (std::int64_t c = 0; c < classes; ++c) {
      row[c] = exp_of_nonpositive(to_float(in[c]) - largest);
      sum += row[c];
    }
    // A label that is none has no loss; NaN says so where reading beside the row would not.
    const bool valid = label >= 0 && label < classes;
    *loss_sum += valid ? std::log(sum) + (largest - to_float(in[label]))
                       : std::numeric_limits<float>::quiet_NaN();
    *correct += best == label && !std::isnan(sum) ? 1 : 0;
    if (dlogits == nullptr) continue;
    const float inverse = 1.0f / sum;
    for (std::int64_t c = 0; c < classes; ++c) {
      const float probability = row[c] * inverse;
      dlogits[r * classes + c] =
          to_half((c == label ? probability - 1.0f : probability) * gradient_scale);
    }
  }
}

}  // namespace leeway::kernels
