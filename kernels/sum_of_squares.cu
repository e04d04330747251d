// A thread a block of kNormBlock elements, in grid strides: it reads kNormLanes neighbours at a
// time, which is whole sectors, and keeps a sum for each. See kernels/sum_of_squares.h.
#include "kernels/device_math.cuh"
#include "kernels/sum_of_squares.h"

namespace leeway::kernels::LEEWAY_DEVICE {

__global__ void block_squares_kernel(std::int64_t elements, const float* in, double* out) {
  constexpr auto kBlock = static_cast<std::int64_t>(kNormBlock);
  constexpr auto kLanes = static_cast<std::int64_t>(kNormLanes);
  const std::int64_t blocks = (elements + kBlock - 1) / kBlock;
  for (std::int64_t block = first_index(); block < blocks; block += index_stride()) {
    const std::int64_t begin = block * kBlock;
    const std::int64_t end = begin + kBlock < elements ? begin + kBlock : elements;
    float lanes[kNormLanes] = {};
    for (std::int64_t at = begin; at < end; at += kLanes)
#pragma unroll
      for (std::int64_t lane = 0; lane < kLanes; ++lane)
        if (at + lane < end) lanes[lane] = lanes[lane] + in[at + lane] * in[at + lane];
    double sum = 0;
    for (const float lane : lanes) sum = sum + static_cast<double>(lane);
    out[block] = sum;
  }
}

void block_squares(Stream stream, std::int64_t elements, const float* in, double* out) {
  constexpr auto kBlock = static_cast<std::int64_t>(kNormBlock);
  launch(block_squares_kernel, shape_for((elements + kBlock - 1) / kBlock, 2 * kWarpSize), stream,
         elements, in, out);
}

}  // namespace leeway::kernels::LEEWAY_DEVICE
