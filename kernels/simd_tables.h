// The tables of simd_avx2.cc and simd_avx512.cc; call their functions only where the processor has
// the instructions (cpu_kernels.cc asks).
#pragma once

#include "kernels/cpu_kernels.h"

namespace leeway::kernels {

const CpuKernels& avx2_kernels() noexcept;
const CpuKernels& avx512_kernels() noexcept;

}  // namespace leeway::kernels
