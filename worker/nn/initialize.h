// First weights: functions of (seed, tensor name) alone, so that neither the order of declaration
// nor the number of workers changes them.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "common/tensor.h"

namespace leeway::worker::nn {

// He et al. 2015, eq. 10: normal with mean 0 and variance 2 / fan_in, which keeps the variance of
// activations from layer to layer under ReLU. Element i is the i-th normal() of
// Random(derive_seed(seed, name)) (worker/random.h), rounded to FP32.
std::vector<float> he_normal(std::uint64_t seed, std::string_view name, const Shape& shape,
                             std::int64_t fan_in);

}  // namespace leeway::worker::nn
