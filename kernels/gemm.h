// GEMM on the CPU: both halves are widened to FP32 once, the sums are cblas_sgemm's. OpenBLAS runs
// on the calling thread alone, so the same input gives the same bits on the same processor. Called
// from one thread (each Gemm has its own scratch).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"

namespace leeway::kernels {

class CpuGemm {
 public:
  CpuGemm();
  // As Backend::gemm.
  void operator()(Transpose ta, Transpose tb, std::int64_t m, std::int64_t n, std::int64_t k,
                  const Half* a, const Half* b, float beta, float* c);

 private:
  std::vector<float> a_;
  std::vector<float> b_;
};

}  // namespace leeway::kernels
