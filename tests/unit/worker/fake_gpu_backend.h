// The CPU backend, or the emulated kernels, as a CUDA backend on tests/unit/transport/fake_cuda.h:
// memory that the host cannot touch, operations that run later, in the order of a stream.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "tests/unit/transport/fake_cuda.h"

namespace leeway::worker::testing {

class FakeGpuBackend final : public kernels::Backend {
 public:
  using FakeCuda = transport::testing::FakeCuda;

  explicit FakeGpuBackend(FakeCuda& cuda,
                          std::unique_ptr<kernels::Backend> here = kernels::open_cpu_backend())
      : cuda_(cuda), stream_(cuda.make_stream()), cpu_(std::move(here)) {}
  ~FakeGpuBackend() override { cuda_.destroy_stream(stream_); }

  std::string name() const override { return "fake GPU"; }
  std::optional<kernels::CudaPlace> cuda() const noexcept override {
    return kernels::CudaPlace{0, stream_};
  }
  void* stream() const noexcept { return stream_; }

  // No allocation of more bytes succeeds.
  void refuse_beyond(std::size_t bytes) { most_ = bytes; }
  kernels::Buffer allocate(std::size_t bytes) override {
    if (bytes > most_) throw std::runtime_error("no memory");
    void* const memory = FakeCuda::allocate(bytes);
    fill_zero(memory, bytes);
    return kernels::Buffer(memory, bytes, [](void* data) { FakeCuda::free(data); });
  }
  void upload(void* device, const void* host, std::size_t bytes) override {
    run([=] { std::memcpy(FakeCuda::here(device), host, bytes); });
    synchronize();
  }
  void download(void* host, const void* device, std::size_t bytes) override {
    run([=] { std::memcpy(host, FakeCuda::here(device), bytes); });
    synchronize();
  }
  void fill_zero(void* device, std::size_t bytes) override {
    run([=] { std::memset(FakeCuda::here(device), 0, bytes); });
  }
  void synchronize() override { cuda_.wait_for(stream_); }

  void gemm(kernels::Transpose ta, kernels::Transpose tb, std::int64_t m, std::int64_t n,
            std::int64_t k, const Half* a, const Half* b, float beta, float* c) override {
    run([=, this] { cpu_->gemm(ta, tb, m, n, k, here(a), here(b), beta, here(c)); });
  }
  void bias_activation(std::int64_t rows, std::int64_t columns, const float* z, const Half* bias,
                       bool relu, Half* out) override {
    run([=, this] { cpu_->bias_activation(rows, columns, here(z), here(bias), relu, here(out)); });
  }
  void relu_backward(std::int64_t elements, const float* da, const Half* activation,
                     Half* dz) override {
    run([=, this] { cpu_->relu_backward(elements, here(da), here(activation), here(dz)); });
  }
  void bias_gradient(std::int64_t rows, std::int64_t columns, const Half* dz, float beta,
                     float* db) override {
    run([=, this] { cpu_->bias_gradient(rows, columns, here(dz), beta, here(db)); });
  }
  void softmax_cross_entropy(std::int64_t rows, std::int64_t classes, const Half* logits,
                             const std::int32_t* labels, float gradient_scale, float* loss_sum,
                             std::int32_t* correct, Half* dlogits) override {
    run([=, this] {
      cpu_->softmax_cross_entropy(rows, classes, here(logits), here(labels), gradient_scale,
                                  here(loss_sum), here(correct), here(dlogits));
    });
  }
  void scale_to_half(std::int64_t elements, const float* in, float scale, Half* out,
                     std::int32_t* not_finite) override {
    run([=, this] { cpu_->scale_to_half(elements, here(in), scale, here(out), here(not_finite)); });
  }
  void convert(std::int64_t elements, const std::byte* in, Dtype from, std::byte* out,
               Dtype to) override {
    run([=, this] { cpu_->convert(elements, here(in), from, here(out), to); });
  }
  void encode(const GradientCodec& codec, std::span<const kernels::EncodePiece> pieces, float scale,
              std::int32_t* not_finite) override {
    std::vector<kernels::EncodePiece> there(pieces.begin(), pieces.end());
    for (kernels::EncodePiece& piece : there) {
      piece.in = here(piece.in);
      piece.payload = here(piece.payload);
    }
    run([=, this] { cpu_->encode(codec, there, scale, here(not_finite)); });
  }
  void encode_top_k(const GradientCodec& codec, std::span<const kernels::TopKPart> parts,
                    float residual_scale, std::int32_t* not_finite) override {
    std::vector<kernels::TopKPart> there(parts.begin(), parts.end());
    for (kernels::TopKPart& part : there) {
      part.sums = here(part.sums);
      part.payload = here(part.payload);
    }
    run([=, this] { cpu_->encode_top_k(codec, there, residual_scale, here(not_finite)); });
  }
  void weighted_sum(std::int64_t elements, float a, const float* x, float b, const float* y,
                    float* out) override {
    run([=, this] { cpu_->weighted_sum(elements, a, here(x), b, here(y), here(out)); });
  }
  void block_squares(std::int64_t elements, const float* in, double* out) override {
    run([=, this] { cpu_->block_squares(elements, here(in), here(out)); });
  }

 private:
  template <typename T>
  static T* here(T* device) {
    return device == nullptr
               ? nullptr
               : reinterpret_cast<T*>(FakeCuda::here(const_cast<std::remove_const_t<T>*>(device)));
  }
  template <typename Work>
  void run(Work work) {
    cuda_.run_on(stream_, [work = std::move(work)]() mutable {
      const std::lock_guard lock(one_);
      work();
    });
  }

  // Operations run one at a time in the process: an emulated grid has no other beside it.
  static inline std::mutex one_;

  FakeCuda& cuda_;
  void* const stream_;
  std::size_t most_ = SIZE_MAX;
  const std::unique_ptr<kernels::Backend> cpu_;
};

}  // namespace leeway::worker::testing
