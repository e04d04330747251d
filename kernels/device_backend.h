// The operations of a backend whose kernels are a DeviceKernels table: CUDA, and its emulation.
// Memory and GEMM are the subclass's. Called from one thread.
#pragma once

#include "kernels/backend.h"
#include "kernels/device_kernels.h"

namespace leeway::kernels {

class DeviceBackend : public Backend {
 public:
  DeviceBackend(const DeviceKernels& kernels, Stream stream) : kernels_(kernels), stream_(stream) {}

  void bias_activation(std::int64_t rows, std::int64_t columns, const float* z, const Half* bias,
                       bool relu, Half* out) override;
  void relu_backward(std::int64_t elements, const float* da, const Half* activation,
                     Half* dz) override;
  void bias_gradient(std::int64_t rows, std::int64_t columns, const Half* dz, float beta,
                     float* db) override;
  void softmax_cross_entropy(std::int64_t rows, std::int64_t classes, const Half* logits,
                             const std::int32_t* labels, float gradient_scale, float* loss_sum,
                             std::int32_t* correct, Half* dlogits) override;
  void convert(std::int64_t elements, const std::byte* in, Dtype from, std::byte* out,
               Dtype to) override;
  void encode(const GradientCodec& codec, std::span<const EncodePiece> pieces, float scale,
              std::int32_t* not_finite) override;
  void encode_top_k(const GradientCodec& codec, std::span<const TopKPart> parts,
                    float residual_scale, std::int32_t* not_finite) override;
  void scale_to_half(std::int64_t elements, const float* in, float scale, Half* out,
                     std::int32_t* not_finite) override;
  void weighted_sum(std::int64_t elements, float a, const float* x, float b, const float* y,
                    float* out) override;
  void block_squares(std::int64_t elements, const float* in, double* out) override;

  const DeviceKernels& kernels() const noexcept { return kernels_; }
  Stream stream() const noexcept { return stream_; }

 private:
  void make_room(Buffer& scratch, std::size_t bytes);

  const DeviceKernels& kernels_;
  const Stream stream_;
  // Grow to the largest call.
  Buffer row_results_;
  Buffer top_k_scratch_;
};

}  // namespace leeway::kernels
