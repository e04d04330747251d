// The sum of the squares of FP32 elements, for norms.
//
// Same bits in every version: in each block of 1024 elements, lane j of 16 sums elements j, j + 16,
// ... in FP32 in their order; the lanes of a block are summed in FP64 in their order, and so are
// the blocks. Called from any thread.
#pragma once

#include <cstddef>
#include <span>

namespace leeway::kernels {

constexpr std::size_t kNormBlock = 1024;
constexpr std::size_t kNormLanes = 16;

// Of sums in FP64: kernels/lamb.h.
constexpr std::size_t kSquareLanes = 8;

// NaN or infinite when an element is, or when a square is beyond FP32.
double sum_of_squares(std::span<const float> values);

}  // namespace leeway::kernels
