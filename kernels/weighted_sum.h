// out[i] = a * x[i] + b * y[i] in FP32, each operation rounded by itself: the same bits everywhere.
//
// Called from any thread. `out` may be x or y, and overlaps them in no other way.
#pragma once

#include <span>

namespace leeway::kernels {

// All of one length.
void weighted_sum(float a, std::span<const float> x, float b, std::span<const float> y,
                  std::span<float> out);

}  // namespace leeway::kernels
