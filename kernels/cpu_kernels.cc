#include "kernels/cpu_kernels.h"

#include "kernels/scalar.h"
#ifdef LEEWAY_HAS_X86_SIMD
#include <cpuid.h>

#include "kernels/simd_tables.h"
#endif

namespace leeway::kernels {

#ifdef LEEWAY_HAS_X86_SIMD
namespace {

// By hand: clang's __builtin_cpu_supports() does not know it.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

}  // namespace
#endif

const CpuKernels& scalar_kernels() noexcept {
  static constexpr CpuKernels kTable{
      "scalar",
      scalar::scale_to_half,
      scalar::narrow,
      scalar::widen,
      scalar::encode_bf16,
      scalar::encode_blocks,
      scalar::sum_of_squares,
      scalar::update,
      scalar::lamb_moments,
      scalar::lamb_step,
      scalar::bias_activation,
      scalar::relu_backward,
      scalar::bias_gradient,
      scalar::softmax_cross_entropy,
  };
  return kTable;
}

std::vector<const CpuKernels*> available_cpu_kernels() {
  std::vector<const CpuKernels*> tables{&scalar_kernels()};
#ifdef LEEWAY_HAS_X86_SIMD
  if (__builtin_cpu_supports("avx2") && has_f16c()) {
    tables.push_back(&avx2_kernels());
    if (__builtin_cpu_supports("avx512f")) tables.push_back(&avx512_kernels());
  }
#endif
  return tables;
}

const CpuKernels& cpu_kernels() noexcept {
  static const CpuKernels& widest = *available_cpu_kernels().back();
  return widest;
}

}  // namespace leeway::kernels
