// The device on which a worker computes: CUDA when one answers, else the CPU. A backend has memory
// and a fixed set of operations; each operation is one file family kernels/<op>.{h,cc,cu}.
//
// Called from one thread. Operations run in the order of the calls; results are at the host after
// download() or synchronize(). Matrices are row-major, dimensions in elements. Errors of the device
// are exceptions (std::runtime_error with the device's own text).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "common/half.h"
#include "common/result.h"
#include "kernels/codec.h"

namespace leeway::kernels {

// Device memory. Move-only; lives no longer than its backend.
class Buffer {
 public:
  Buffer() = default;
  Buffer(void* data, std::size_t bytes, void (*release)(void*)) noexcept;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();
  std::size_t bytes() const noexcept { return bytes_; }
  template <typename T>
  T* as(std::size_t element_offset = 0) const noexcept {
    return static_cast<T*>(data_) + element_offset;
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  void (*release_)(void*) = nullptr;
};

// Where a CUDA backend computes, for those who move bytes beside it.
struct CudaPlace {
  int device = 0;          // as the run-time library numbers it
  void* stream = nullptr;  // a cudaStream_t: all operations of the backend, in their order
};

enum class Transpose : bool { kNo, kYes };

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;  // "cpu (AVX-512)", "cuda:0 NVIDIA H200"
  // Device memory is the program's own memory: a pointer to either serves as the other, no copy.
  virtual bool on_host() const noexcept { return false; }
  // Nothing when it is not CUDA's.
  virtual std::optional<CudaPlace> cuda() const noexcept { return std::nullopt; }

  virtual Buffer allocate(std::size_t bytes) = 0;  // zeroed
  virtual void upload(void* device, const void* host, std::size_t bytes) = 0;
  virtual void download(void* host, const void* device, std::size_t bytes) = 0;
  virtual void fill_zero(void* device, std::size_t bytes) = 0;
  virtual void synchronize() = 0;

  // c (m x n, FP32) = op(a) (m x k, FP16) * op(b) (k x n, FP16) + beta * c, sums in FP32.
  virtual void gemm(Transpose ta, Transpose tb, std::int64_t m, std::int64_t n, std::int64_t k,
                    const Half* a, const Half* b, float beta, float* c) = 0;
  // out (rows x columns, FP16) = relu?(z + bias); bias has `columns` FP16 elements.
  virtual void bias_activation(std::int64_t rows, std::int64_t columns, const float* z,
                               const Half* bias, bool relu, Half* out) = 0;
  // dz (FP16) = da (FP32) where activation > 0, else 0.
  virtual void relu_backward(std::int64_t elements, const float* da, const Half* activation,
                             Half* dz) = 0;
  // db (FP32, `columns`) = column sums of dz + beta * db, rows added in order.
  virtual void bias_gradient(std::int64_t rows, std::int64_t columns, const Half* dz, float beta,
                             float* db) = 0;
  // logits (rows x classes, FP16) and labels in [0, classes). loss_sum += the sum of the rows'
  // cross entropies (natural log); correct += rows whose largest logit is the label; dlogits (FP16)
  // = (softmax - onehot) * gradient_scale. dlogits may be null (evaluation).
  virtual void softmax_cross_entropy(std::int64_t rows, std::int64_t classes, const Half* logits,
                                     const std::int32_t* labels, float gradient_scale,
                                     float* loss_sum, std::int32_t* correct, Half* dlogits) = 0;
  // As kernels/cast.h, this and the next; not_finite (one int32 on the device) is set to 1 when a
  // result is not finite and else left alone.
  virtual void scale_to_half(std::int64_t elements, const float* in, float scale, Half* out,
                             std::int32_t* not_finite) = 0;
  virtual void convert(std::int64_t elements, const std::byte* in, Dtype from, std::byte* out,
                       Dtype to) = 0;
  // As kernels/codec.h, of several pieces or parts at once; not_finite as above. Any codec but kF32
  // and kTopK.
  virtual void encode(const GradientCodec& codec, std::span<const EncodePiece> pieces, float scale,
                      std::int32_t* not_finite) = 0;
  virtual void encode_top_k(const GradientCodec& codec, std::span<const TopKPart> parts,
                            float residual_scale, std::int32_t* not_finite) = 0;
  // As kernels/weighted_sum.h.
  virtual void weighted_sum(std::int64_t elements, float a, const float* x, float b, const float* y,
                            float* out) = 0;
  // As kernels/sum_of_squares.h, a result for each block of kNormBlock elements.
  virtual void block_squares(std::int64_t elements, const float* in, double* out) = 0;
};

enum class BackendChoice { kAuto, kCpu, kCuda };

// kCuda throws ConfigError when this build has no CUDA or no device answers; kAuto then takes the
// CPU.
std::unique_ptr<Backend> open_backend(BackendChoice choice);
std::unique_ptr<Backend> open_cpu_backend();

}  // namespace leeway::kernels
