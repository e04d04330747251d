// What the versions of softmax cross entropy share: the exponential, and a row's result.
//
// exp(x) for x <= 0, within 2 units in the last place of FP32: x = n ln 2 + r, a polynomial in r
// (Cephes expf's coefficients), then times 2^n. Its own code so that scalar, AVX2, AVX-512 and CUDA
// agree, which libm's does not promise. Below -87.3 the result is 0 (2^n would be subnormal).
#pragma once

#include <cstdint>

namespace leeway::kernels {

struct ExpConstants {
  static constexpr float kLowest = -87.3f;
  static constexpr float kLog2E = 1.44269504088896341f;
  static constexpr float kLn2High = 0.693359375f;
  static constexpr float kLn2Low = -2.12194440e-4f;
  // Adding and subtracting 1.5 * 2^23 rounds to an integer, to nearest even.
  static constexpr float kRound = 12582912.0f;
  static constexpr float kC0 = 1.9875691500e-4f;
  static constexpr float kC1 = 1.3981999507e-3f;
  static constexpr float kC2 = 8.3334519073e-3f;
  static constexpr float kC3 = 4.1665795894e-2f;
  static constexpr float kC4 = 1.6666665459e-1f;
  static constexpr float kC5 = 5.0000001201e-1f;
};

// One row's part of the sums.
struct RowResult {
  float loss;
  std::int32_t correct;
};

}  // namespace leeway::kernels
