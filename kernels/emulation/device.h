// The part of CUDA's device language that our kernels use, for the host: with this header g++
// compiles the very .cu sources, and launch() runs them a block at a time (grid.h). Tests only.
//
// Called from one thread at a time. Names are CUDA's.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <type_traits>

#include "kernels/emulation/grid.h"

#define LEEWAY_DEVICE emulated  // the namespace of the kernels

#define __global__
#define __device__
// Blocks run one after another, so one copy serves them all. As on a GPU, it starts as the last
// block left it.
#define __shared__ static

namespace leeway::kernels::emulated {

using emulation::blockDim;
using emulation::blockIdx;
using emulation::gridDim;
using emulation::threadIdx;

template <typename... P, typename... A>
void launch(void (*kernel)(P...), LaunchShape shape, Stream, A... arguments) {
  emulation::run_grid(shape.blocks, shape.threads, [&] { kernel(arguments...); });
}

inline float half_to_float(Half value) { return to_float(value); }
inline Half float_to_half(float value) { return to_half(value); }

// The default argument gives each call its own identity: threads that wait in two different
// calls do not meet, as on a GPU.
inline void __syncthreads(std::source_location where = std::source_location::current()) {
  emulation::sync_block(where);
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, unsigned lane_mask,
                  std::source_location where = std::source_location::current()) {
  static_assert(sizeof(T) == 4 && std::is_trivially_copyable_v<T>);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  bits = emulation::exchange_in_warp(
      mask, bits, [=](unsigned lane) { return lane ^ lane_mask; }, where);
  std::memcpy(&value, &bits, sizeof(bits));
  return value;
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta,
                   std::source_location where = std::source_location::current()) {
  static_assert(sizeof(T) == 4 && std::is_trivially_copyable_v<T>);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  bits = emulation::exchange_in_warp(
      mask, bits, [=](unsigned lane) { return lane + delta; }, where);
  std::memcpy(&value, &bits, sizeof(bits));
  return value;
}

inline unsigned __ballot_sync(unsigned mask, bool predicate,
                              std::source_location where = std::source_location::current()) {
  return emulation::ballot_in_warp(mask, predicate, where);
}

// Fibers take turns between waits alone, so this is one step to all of them.
template <typename T>
T atomicAdd(T* address, T value) {
  const T old = *address;
  *address = old + value;
  return old;
}

inline int __popc(unsigned bits) { return std::popcount(bits); }

}  // namespace leeway::kernels::emulated
