// cuBLAS, loaded when a device answers and not before: linked in, its 600 MB cost every start of
// every program seconds, also where there is no GPU.
//
// Called from the thread that opens the backend; the table lives until the process ends.
#pragma once

#include <cublas_v2.h>

namespace leeway::kernels {

struct CublasLibrary {
  decltype(&::cublasCreate_v2) create;
  decltype(&::cublasDestroy_v2) destroy;
  decltype(&::cublasSetStream_v2) set_stream;
  // Spelled out: the header overloads it for an older type of the last but one argument.
  cublasStatus_t (*gemm_ex)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n,
                            int k, const void* alpha, const void* a, cudaDataType a_type, int lda,
                            const void* b, cudaDataType b_type, int ldb, const void* beta, void* c,
                            cudaDataType c_type, int ldc, cublasComputeType_t, cublasGemmAlgo_t);
  decltype(&::cublasGetStatusString) status_string;
};

// Throws std::runtime_error with the loader's own text when the library or a function is missing.
const CublasLibrary& cublas_library();

}  // namespace leeway::kernels
