// The table of one vector type: every operation's template instantiated for V.
//
// Included only by simd_avx2.cc and simd_avx512.cc, whose V has internal linkage: so do the
// instances, and no AVX-512 copy of a shared inline function can reach another processor.
#pragma once

#include "kernels/bias_activation_simd.h"
#include "kernels/bias_gradient_simd.h"
#include "kernels/cast_simd.h"
#include "kernels/codec_simd.h"
#include "kernels/cpu_kernels.h"
#include "kernels/lamb_simd.h"
#include "kernels/optimizer_simd.h"
#include "kernels/relu_backward_simd.h"
#include "kernels/softmax_cross_entropy_simd.h"
#include "kernels/sum_of_squares_simd.h"

namespace leeway::kernels {

template <typename V>
constexpr CpuKernels simd_table(const char* name) {
  return CpuKernels{
      name,
      simd::scale_to_half<V>,
      simd::narrow<V>,
      simd::widen<V>,
      simd::encode_bf16<V>,
      simd::encode_blocks<V>,
      simd::sum_of_squares<V>,
      simd::update<V>,
      simd::lamb_moments<V>,
      simd::lamb_step<V>,
      simd::bias_activation<V>,
      simd::relu_backward<V>,
      simd::bias_gradient<V>,
      simd::softmax_cross_entropy<V>,
  };
}

}  // namespace leeway::kernels
