// The CPU backend as a CUDA backend on tests/unit/transport/fake_cuda.h: memory that the host
// cannot touch, operations that run later, in the order of a stream.
#pragma once

#include <cstring>
#include <memory>
#include <string>

#include "kernels/backend.h"
#include "tests/unit/transport/fake_cuda.h"

namespace leeway::worker::testing {

class FakeGpuBackend final : public kernels::Backend {
 public:
  using FakeCuda = transport::testing::FakeCuda;

  explicit FakeGpuBackend(FakeCuda& cuda) : cuda_(cuda), stream_(cuda.make_stream()) {}
  ~FakeGpuBackend() override { cuda_.destroy_stream(stream_); }

  std::string name() const override { return "fake GPU"; }
  std::optional<kernels::CudaPlace> cuda() const noexcept override {
    return kernels::CudaPlace{0, stream_};
  }
  void* stream() const noexcept { return stream_; }

  kernels::Buffer allocate(std::size_t bytes) override {
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
    cuda_.run_on(stream_, std::move(work));
  }

  FakeCuda& cuda_;
  void* const stream_;
  std::unique_ptr<kernels::Backend> cpu_ = kernels::open_cpu_backend();
};

}  // namespace leeway::worker::testing
