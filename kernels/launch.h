// How every CUDA kernel is launched. Under nvcc launch() is an ordinary launch; elsewhere (the test
// library kernels/emulation/) the same source runs on the host. Included by .cu files alone.
//
// Called from the thread that owns the stream. A launch that the device refuses throws
// std::runtime_error with the device's text.
#pragma once

#include <cstdint>

#include "common/half.h"
#include "kernels/device_kernels.h"

namespace leeway::kernels {

constexpr unsigned kWarpSize = 32;

struct LaunchShape {
  unsigned blocks;
  unsigned threads;
};

// The most blocks of a launch: enough to fill any device several times over; beyond, kernels
// stride.
constexpr std::int64_t kMostBlocks = 4096;

// Enough blocks of `threads` for `elements`, up to kMostBlocks.
inline LaunchShape shape_for(std::int64_t elements, unsigned threads = 256) {
  const std::int64_t blocks = (elements + threads - 1) / threads;
  return {static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks), threads};
}

}  // namespace leeway::kernels

#ifdef __CUDACC__

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#define LEEWAY_DEVICE cuda  // the namespace of the kernels

namespace leeway::kernels::cuda {

template <typename... P, typename... A>
void launch(void (*kernel)(P...), LaunchShape shape, Stream stream, A... arguments) {
  if (shape.blocks == 0) return;
  kernel<<<shape.blocks, shape.threads, 0, static_cast<cudaStream_t>(stream)>>>(arguments...);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess)
    throw std::runtime_error(std::string("cuda: launch: ") + cudaGetErrorString(error));
}

__device__ inline float half_to_float(Half value) {
  return __half2float(__ushort_as_half(value.bits));
}
__device__ inline Half float_to_half(float value) {
  return Half{__half_as_ushort(__float2half_rn(value))};
}

}  // namespace leeway::kernels::cuda

#else

#include "kernels/emulation/device.h"

#endif
