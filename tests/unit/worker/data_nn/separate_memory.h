// The CPU backend behind the manners of a device with memory of its own, as CUDA's has: on_host()
// is false, and "device" pointers carry an offset, so that using one as the host's, or the host's
// in a kernel, is a crash.
#pragma once

#include <memory>
#include <string>

#include "kernels/backend.h"

namespace leeway::worker {

class SeparateMemory final : public kernels::Backend {
 public:
  std::string name() const override { return "separate " + cpu_->name(); }

  kernels::Buffer allocate(std::size_t bytes) override {
    auto* memory = new kernels::Buffer(cpu_->allocate(bytes + sizeof(kernels::Buffer*) + 64));
    // The owner is kept in front of what the device sees.
    *memory->as<kernels::Buffer*>() = memory;
    return kernels::Buffer(away(memory->as<std::byte>(64)), bytes, [](void* data) {
      delete *reinterpret_cast<kernels::Buffer**>(static_cast<std::byte*>(data) - kOffset - 64);
    });
  }
  void upload(void* device, const void* host, std::size_t bytes) override {
    cpu_->upload(here(device), host, bytes);
  }
  void download(void* host, const void* device, std::size_t bytes) override {
    cpu_->download(host, here(device), bytes);
  }
  void fill_zero(void* device, std::size_t bytes) override { cpu_->fill_zero(here(device), bytes); }
  void synchronize() override { cpu_->synchronize(); }

  void gemm(kernels::Transpose ta, kernels::Transpose tb, std::int64_t m, std::int64_t n,
            std::int64_t k, const Half* a, const Half* b, float beta, float* c) override {
    cpu_->gemm(ta, tb, m, n, k, here(a), here(b), beta, here(c));
  }
  void bias_activation(std::int64_t rows, std::int64_t columns, const float* z, const Half* bias,
                       bool relu, Half* out) override {
    cpu_->bias_activation(rows, columns, here(z), here(bias), relu, here(out));
  }
  void relu_backward(std::int64_t elements, const float* da, const Half* activation,
                     Half* dz) override {
    cpu_->relu_backward(elements, here(da), here(activation), here(dz));
  }
  void bias_gradient(std::int64_t rows, std::int64_t columns, const Half* dz, float beta,
                     float* db) override {
    cpu_->bias_gradient(rows, columns, here(dz), beta, here(db));
  }
  void softmax_cross_entropy(std::int64_t rows, std::int64_t classes, const Half* logits,
                             const std::int32_t* labels, float gradient_scale, float* loss_sum,
                             std::int32_t* correct, Half* dlogits) override {
    cpu_->softmax_cross_entropy(rows, classes, here(logits), here(labels), gradient_scale,
                                here(loss_sum), here(correct), here(dlogits));
  }
  void weighted_sum(std::int64_t elements, float a, const float* x, float b, const float* y,
                    float* out) override {
    cpu_->weighted_sum(elements, a, here(x), b, here(y), here(out));
  }
  void block_squares(std::int64_t elements, const float* in, double* out) override {
    cpu_->block_squares(elements, here(in), here(out));
  }
  void convert(std::int64_t elements, const std::byte* in, Dtype from, std::byte* out,
               Dtype to) override {
    cpu_->convert(elements, here(in), from, here(out), to);
  }
  void encode(const GradientCodec& codec, std::span<const kernels::EncodePiece> pieces, float scale,
              std::int32_t* not_finite) override {
    for (kernels::EncodePiece piece : pieces) {
      piece.in = here(piece.in);
      piece.payload = here(piece.payload);
      cpu_->encode(codec, {&piece, 1}, scale, here(not_finite));
    }
  }
  void encode_top_k(const GradientCodec& codec, std::span<const kernels::TopKPart> parts,
                    float residual_scale, std::int32_t* not_finite) override {
    for (kernels::TopKPart part : parts) {
      part.sums = here(part.sums);
      part.payload = here(part.payload);
      cpu_->encode_top_k(codec, {&part, 1}, residual_scale, here(not_finite));
    }
  }
  void scale_to_half(std::int64_t elements, const float* in, float scale, Half* out,
                     std::int32_t* not_finite) override {
    cpu_->scale_to_half(elements, here(in), scale, here(out), here(not_finite));
  }

 private:
  // Beyond what user space maps, and a multiple of every alignment.
  static constexpr std::size_t kOffset = std::size_t{1} << 56;

  static std::byte* away(std::byte* data) {
    return reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(data) + kOffset);
  }
  template <typename T>
  static T* here(T* device) {
    if (device == nullptr) return nullptr;
    return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(device) - kOffset);
  }

  std::unique_ptr<kernels::Backend> cpu_ = kernels::open_cpu_backend();
};

}  // namespace leeway::worker
