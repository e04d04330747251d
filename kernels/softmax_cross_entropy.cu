// Softmax cross entropy: a warp a row, its lanes over the classes; then one block adds the rows'
// losses in an order that does not depend on the grid, so a run can be repeated.
#include "kernels/device_math.cuh"

namespace leeway::kernels::LEEWAY_DEVICE {

constexpr unsigned kRowThreads = 128;
constexpr unsigned kSumThreads = 256;

struct Largest {
  float value;
  int index;
};

// The largest of all lanes, the lowest index of equals.
__device__ inline Largest warp_largest(Largest mine) {
  for (unsigned offset = kWarpSize / 2; offset > 0; offset /= 2) {
    const float value = __shfl_xor_sync(kAllLanes, mine.value, offset);
    const int index = __shfl_xor_sync(kAllLanes, mine.index, offset);
    if (value > mine.value || (value == mine.value && index < mine.index)) mine = {value, index};
  }
  return mine;
}

__device__ inline float warp_sum(float mine) {
  for (unsigned offset = kWarpSize / 2; offset > 0; offset /= 2)
    mine += __shfl_xor_sync(kAllLanes, mine, offset);
  return mine;
}

__device__ inline float exp_of_nonpositive(float x) {
  using C = ExpConstants;
  if (!(x >= C::kLowest)) return x != x ? x : 0.0f;
  const float n = (x * C::kLog2E + C::kRound) - C::kRound;
  const float r = (x - n * C::kLn2High) - n * C::kLn2Low;
  float p = C::kC0;
  p = p * r + C::kC1;
  p = p * r + C::kC2;
  p = p * r + C::kC3;
  p = p * r + C::kC4;
  p = p * r + C::kC5;
  p = (p * (r * r) + r) + 1.0f;
  return p * bits_to_float(static_cast<std::uint32_t>(static_cast<std::int32_t>(n) + 127) << 23);
}

__global__ void softmax_rows_kernel(std::int64_t rows, int classes, const Half* logits,
                                    const std::int32_t* labels, float gradient_scale, Half* dlogits,
                                    RowResult* results) {
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
  const std::int64_t warps = index_stride() / kWarpSize;
  for (std::int64_t row = first_index() / kWarpSize; row < rows; row += warps) {
    const Half* in = logits + row * classes;
    const int label = labels[row];
    Largest largest{-INFINITY, classes};
    for (int c = lane; c < classes; c += kWarpSize) {
      const float value = half_to_float(in[c]);
      if (value > largest.value) largest = {value, c};
    }
    largest = warp_largest(largest);
    float sum = 0.0f;
    for (int c = lane; c < classes; c += kWarpSize)
      sum += exp_of_nonpositive(half_to_float(in[c]) - largest.value);
    sum = warp_sum(sum);
    if (lane == 0) {
      const bool valid = label >= 0 && label < classes;
      results[row].loss = valid ? logf(sum) + (largest.value - half_to_float(in[label])) : NAN;
      results[row].correct = largest.index == label && sum == sum ? 1 : 0;
    }
    if (dlogits == nullptr) continue;
    const float inverse = 1.0f / sum;
    for (int c = lane; c < classes; c += kWarpSize) {
      const float probability = exp_of_nonpositive(half_to_float(in[c]) - largest.value) * inverse;
      dlogits[row * classes + c] =
          float_to_half((c == label ? probability - 1.0f : probability) * gradient_scale);
    }
  }
}

// One block.
__global__ void add_row_results_kernel(std::int64_t rows, const RowResult* results, float* loss_sum,
                                       std::int32_t* correct) {
  __shared__ float losses[kSumThreads];
  __shared__ std::int32_t counts[kSumThreads];
  float loss = 0.0f;
  std::int32_t count = 0;
  for (std::int64_t row = threadIdx.x; row < rows; row += kSumThreads) {
    loss += results[row].loss;
    count += results[row].correct;
  }
  losses[threadIdx.x] = loss;
  counts[threadIdx.x] = count;
  __syncthreads();
  for (unsigned half = kSumThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      losses[threadIdx.x] += losses[threadIdx.x + half];
      counts[threadIdx.x] += counts[threadIdx.x + half];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    *loss_sum += losses[0];
    *correct += counts[0];
  }
}

void softmax_cross_entropy(Stream stream, std::int64_t rows, std::int64_t classes,
                           const Half* logits, const std::int32_t* labels, float gradient_scale,
                           float* loss_sum, std::int32_t* correct, Half* dlogits,
                           RowResult* scratch) {
  if (rows == 0) return;
  launch(softmax_rows_kernel, shape_for(rows * kWarpSize, kRowThreads), stream, rows,
         static_cast<int>(classes), logits, labels, gradient_scale, dlogits, scratch);
  launch(add_row_results_kernel, LaunchShape{1, kSumThreads}, stream, rows, scratch, loss_sum,
         correct);
}

}  // namespace leeway::kernels::LEEWAY_DEVICE
