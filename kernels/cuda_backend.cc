#include "kernels/cuda_backend.h"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <limits>
#include <stdexcept>

#include "kernels/cublas_library.h"

namespace leeway::kernels {
namespace {

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess)
    throw std::runtime_error(std::string("cuda: ") + what + ": " + cudaGetErrorString(error));
}

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(std::string("cublas: ") + what + ": " +
                             cublas_library().status_string(status));
}

struct StreamOwner {
  cudaStream_t cuda_stream = nullptr;
  StreamOwner() {
    check(cudaStreamCreateWithFlags(&cuda_stream, cudaStreamNonBlocking), "create stream");
  }
  ~StreamOwner() { cudaStreamDestroy(cuda_stream); }
  StreamOwner(const StreamOwner&) = delete;
  StreamOwner& operator=(const StreamOwner&) = delete;
};

struct CublasOwner {
  cublasHandle_t handle = nullptr;
  explicit CublasOwner(cudaStream_t stream) {
    check(cublas_library().create(&handle), "create");
    check(cublas_library().set_stream(handle, stream), "set stream");
  }
  ~CublasOwner() { cublas_library().destroy(handle); }
  CublasOwner(const CublasOwner&) = delete;
  CublasOwner& operator=(const CublasOwner&) = delete;
};

int blas_size(std::int64_t size) {
  if (size > std::numeric_limits<int>::max())
    throw std::runtime_error("gemm: a dimension is beyond cuBLAS's 32-bit sizes");
  return static_cast<int>(size);
}

// Member order is close order, backwards: cuBLAS before its stream, before the base's scratch.
class CudaBackend final : private StreamOwner, public DeviceBackend {
 public:
  CudaBackend(int device, std::string device_name)
      : DeviceBackend(cuda::device_kernels(), cuda_stream),
        device_(device),
        name_("cuda:" + std::to_string(device) + " " + std::move(device_name)),
        cublas_(cuda_stream) {}

  std::string name() const override { return name_; }
  std::optional<CudaPlace> cuda() const noexcept override {
    return CudaPlace{device_, cuda_stream};
  }

  Buffer allocate(std::size_t bytes) override {
    void* data = nullptr;
    check(cudaMalloc(&data, bytes == 0 ? 1 : bytes), "allocate");
    Buffer buffer(data, bytes, [](void* p) { cudaFree(p); });
    fill_zero(data, bytes);
    return buffer;
  }
  void upload(void* device, const void* host, std::size_t bytes) override {
    check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, cuda_stream), "upload");
    // Ordinary host memory is staged before the call returns; pinned memory is not, and the caller
    // may reuse it.
    synchronize();
  }
  void download(void* host, const void* device, std::size_t bytes) override {
    check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, cuda_stream), "download");
    synchronize();
  }
  void fill_zero(void* device, std::size_t bytes) override {
    check(cudaMemsetAsync(device, 0, bytes, cuda_stream), "fill");
  }
  void synchronize() override { check(cudaStreamSynchronize(cuda_stream), "synchronize"); }

  // cuBLAS is column-major: a row-major matrix is its transpose there, so c^T = op(b)^T op(a)^T
  // with the operands swapped and their transposes as given.
  void gemm(Transpose ta, Transpose tb, std::int64_t m, std::int64_t n, std::int64_t k,
            const Half* a, const Half* b, float beta, float* c) override {
    if (m == 0 || n == 0) return;
    const float alpha = 1.0f;
    const auto leading = [](std::int64_t size) { return size > 0 ? blas_size(size) : 1; };
    check(cublas_library().gemm_ex(cublas_.handle, operation(tb), operation(ta), blas_size(n),
                                   blas_size(m), blas_size(k), &alpha, b, CUDA_R_16F,
                                   leading(tb == Transpose::kYes ? k : n), a, CUDA_R_16F,
                                   leading(ta == Transpose::kYes ? m : k), &beta, c, CUDA_R_32F,
                                   leading(n), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
          "gemm");
  }

 private:
  static cublasOperation_t operation(Transpose transpose) {
    return transpose == Transpose::kYes ? CUBLAS_OP_T : CUBLAS_OP_N;
  }

  const int device_;
  const std::string name_;
  CublasOwner cublas_;
};

}  // namespace

std::unique_ptr<DeviceBackend> open_cuda_backend(std::string& reason) {
  int devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaSuccess) {
    reason = cudaGetErrorString(error);
    return nullptr;
  }
  if (devices == 0) {
    reason = "the driver lists none";
    return nullptr;
  }
  // Processes of one machine take turns, as launchers number them: LOCAL_RANK among the visible
  // ones.
  const char* rank = std::getenv("LOCAL_RANK");
  const int device =
      rank != nullptr
          ? static_cast<int>(std::strtoul(rank, nullptr, 10) % static_cast<unsigned>(devices))
          : 0;
  check(cudaSetDevice(device), "choose device");
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "device properties");
  return std::make_unique<CudaBackend>(device, properties.name);
}

}  // namespace leeway::kernels
