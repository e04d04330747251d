#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cast.h"
#include "kernels/codec.h"
#include "kernels/cpu_kernels.h"
#include "kernels/gemm.h"
#include "kernels/sum_of_squares.h"
#include "kernels/weighted_sum.h"

namespace leeway::kernels {
namespace {

constexpr std::size_t kAlignment = 64;  // a cache line, and the widest vector

std::size_t rounded_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

class CpuBackend final : public Backend {
 public:
  std::string name() const override { return std::string("cpu (") + kernels_.name + ")"; }
  bool on_host() const noexcept override { return true; }

  Buffer allocate(std::size_t bytes) override {
    void* data = std::aligned_alloc(kAlignment, rounded_up(bytes + 1, kAlignment));
    if (data == nullptr) throw std::bad_alloc();
    std::memset(data, 0, bytes);
    return Buffer(data, bytes, std::free);
  }
  void upload(void* device, const void* host, std::size_t bytes) override {
    if (bytes != 0) std::memcpy(device, host, bytes);
  }
  void download(void* host, const void* device, std::size_t bytes) override {
    if (bytes != 0) std::memcpy(host, device, bytes);
  }
  void fill_zero(void* device, std::size_t bytes) override {
    if (bytes != 0) std::memset(device, 0, bytes);
  }
  void synchronize() override {}

  void gemm(Transpose ta, Transpose tb, std::int64_t m, std::int64_t n, std::int64_t k,
            const Half* a, const Half* b, float beta, float* c) override {
    gemm_(ta, tb, m, n, k, a, b, beta, c);
  }
  void bias_activation(std::int64_t rows, std::int64_t columns, const float* z, const Half* bias,
                       bool relu, Half* out) override {
    kernels_.bias_activation(rows, columns, z, bias, relu, out);
  }
  void relu_backward(std::int64_t elements, const float* da, const Half* activation,
                     Half* dz) override {
    kernels_.relu_backward(elements, da, activation, dz);
  }
  void bias_gradient(std::int64_t rows, std::int64_t columns, const Half* dz, float beta,
                     float* db) override {
    kernels_.bias_gradient(rows, columns, dz, beta, db);
  }
  void softmax_cross_entropy(std::int64_t rows, std::int64_t classes, const Half* logits,
                             const std::int32_t* labels, float gradient_scale, float* loss_sum,
                             std::int32_t* correct, Half* dlogits) override {
    row_.resize(rounded_up(static_cast<std::size_t>(classes), 16));
    kernels_.softmax_cross_entropy(rows, classes, logits, labels, gradient_scale, loss_sum, correct,
                                   dlogits, row_.data());
  }
  void scale_to_half(std::int64_t elements, const float* in, float scale, Half* out,
                     std::int32_t* not_finite) override {
    if (!kernels_.scale_to_half(in, static_cast<std::size_t>(elements), scale, out))
      *not_finite = 1;
  }
  void convert(std::int64_t elements, const std::byte* in, Dtype from, std::byte* out,
               Dtype to) override {
    kernels::convert(static_cast<std::size_t>(elements), in, from, out, to);
  }
  void encode(const GradientCodec& codec, std::span<const EncodePiece> pieces, float scale,
              std::int32_t* not_finite) override {
    for (const EncodePiece& piece : pieces)
      if (!kernels::encode(codec, {piece.in, piece.count}, scale, piece.payload, piece.elements,
                           piece.at))
        *not_finite = 1;
  }
  void encode_top_k(const GradientCodec& codec, std::span<const TopKPart> parts,
                    float residual_scale, std::int32_t* not_finite) override {
    for (const TopKPart& part : parts)
      if (!kernels::encode_top_k(codec, {part.sums, part.elements}, residual_scale, part.payload))
        *not_finite = 1;
  }
  void weighted_sum(std::int64_t elements, float a, const float* x, float b, const float* y,
                    float* out) override {
    const auto count = static_cast<std::size_t>(elements);
    kernels::weighted_sum(a, {x, count}, b, {y, count}, {out, count});
  }
  void block_squares(std::int64_t elements, const float* in, double* out) override {
    const auto all = static_cast<std::size_t>(elements);
    for (std::size_t at = 0; at < all; at += kNormBlock)
      out[at / kNormBlock] = kernels_.sum_of_squares(in + at, std::min(kNormBlock, all - at));
  }

 private:
  const CpuKernels& kernels_ = cpu_kernels();
  CpuGemm gemm_;
  std::vector<float> row_;
};

}  // namespace

std::unique_ptr<Backend> open_cpu_backend() { return std::make_unique<CpuBackend>(); }

}  // namespace leeway::kernels
