// The CPU's versions of every operation: a plain scalar reference, AVX2 with F16C, and AVX-512, as
// tables of functions, so that a test can ask for each and the program takes the widest that
// this processor has.
//
// Called from any thread on disjoint outputs. Arguments as in cast.h, optimizer.h and backend.h.
// All tables give the same bits (payloads of NaN excepted).
//
// Raw pointers only: the SIMD files are compiled for processors that this one may not be, so they
// must not emit inline functions of the standard library that the linker could take for everybody.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/half.h"
#include "common/tensor.h"
#include "kernels/update_plan.h"

namespace leeway::kernels {

struct CpuKernels {
  const char* name;
  bool (*scale_to_half)(const float* in, std::size_t elements, float scale, Half* out);
  void (*narrow)(const float* in, std::size_t elements, Dtype dtype, std::byte* out);
  void (*widen)(const std::byte* in, std::size_t elements, Dtype dtype, float* out);
  // kernels/codec.h. `scales` starts with the block that the first element begins.
  bool (*encode_bf16)(const float* in, std::size_t elements, float scale, Bfloat16* out);
  bool (*encode_blocks)(Codec codec, const float* in, std::size_t elements, float scale,
                        std::byte* out, std::byte* scales);
  double (*sum_of_squares)(const float* in, std::size_t elements);
  // Of the same arrays, one after the other; the last is published.
  void (*update)(const UpdatePlan* plans, std::size_t count);
  // kernels/lamb.h; one sum for each kNormBlock elements.
  void (*lamb_moments)(const UpdatePlan& plan, std::size_t begin, std::size_t end, double* weights,
                       double* changes);
  void (*lamb_step)(const UpdatePlan& plan, std::size_t begin, std::size_t end);
  void (*bias_activation)(std::int64_t rows, std::int64_t columns, const float* z, const Half* bias,
                          bool relu, Half* out);
  void (*relu_backward)(std::int64_t elements, const float* da, const Half* activation, Half* dz);
  void (*bias_gradient)(std::int64_t rows, std::int64_t columns, const Half* dz, float beta,
                        float* db);
  // `row` is room for `classes` FP32, rounded up to 16 elements.
  void (*softmax_cross_entropy)(std::int64_t rows, std::int64_t classes, const Half* logits,
                                const std::int32_t* labels, float gradient_scale, float* loss_sum,
                                std::int32_t* correct, Half* dlogits, float* row);
};

const CpuKernels& scalar_kernels() noexcept;
// The widest that this processor has.
const CpuKernels& cpu_kernels() noexcept;
// All that this processor has, scalar first.
std::vector<const CpuKernels*> available_cpu_kernels();

}  // namespace leeway::kernels
