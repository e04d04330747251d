#include "kernels/gemm.h"

#include <cblas.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "kernels/cpu_kernels.h"

namespace leeway::kernels {
namespace {

const float* widened(const Half* in, std::int64_t elements, std::vector<float>& scratch) {
  if (scratch.size() < static_cast<std::size_t>(elements)) scratch.resize(elements);
  cpu_kernels().widen(reinterpret_cast<const std::byte*>(in), elements, Dtype::kF16,
                      scratch.data());
  return scratch.data();
}

CBLAS_TRANSPOSE cblas_transpose(Transpose transpose) {
  return transpose == Transpose::kYes ? CblasTrans : CblasNoTrans;
}

}  // namespace

// Whatever OpenBLAS the system's alternatives chose: a threaded one would fight the other
// processes for the cores, and its sums depend on the number of threads.
CpuGemm::CpuGemm() { openblas_set_num_threads(1); }

void CpuGemm::operator()(Transpose ta, Transpose tb, std::int64_t m, std::int64_t n, std::int64_t k,
                         const Half* a, const Half* b, float beta, float* c) {
  if (m == 0 || n == 0) return;
  if (std::max({m, n, k}) > std::numeric_limits<blasint>::max())
    throw std::runtime_error("gemm: a dimension is beyond this BLAS's 32-bit sizes");
  const float* wide_a = widened(a, m * k, a_);
  const float* wide_b = widened(b, k * n, b_);
  // BLAS wants a leading dimension of at least 1 even where there is nothing to lead.
  const auto leading = [](std::int64_t size) {
    return static_cast<blasint>(std::max<std::int64_t>(size, 1));
  };
  cblas_sgemm(CblasRowMajor, cblas_transpose(ta), cblas_transpose(tb), static_cast<blasint>(m),
              static_cast<blasint>(n), static_cast<blasint>(k), 1.0f, wide_a,
              leading(ta == Transpose::kYes ? m : k), wide_b,
              leading(tb == Transpose::kYes ? k : n), beta, c, leading(n));
}

}  // namespace leeway::kernels
