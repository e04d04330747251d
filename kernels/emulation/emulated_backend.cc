#include <cstdlib>
#include <cstring>
#include <new>

#include "kernels/device_backend.h"
#include "kernels/emulation/emulated_kernels.h"
#include "kernels/gemm.h"

namespace leeway::kernels {
namespace {

class EmulatedBackend final : public DeviceBackend {
 public:
  EmulatedBackend() : DeviceBackend(emulated::device_kernels(), nullptr) {}

  std::string name() const override { return "emulated"; }
  // Exact sizes, so that the address sanitizer sees an access one element beyond.
  Buffer allocate(std::size_t bytes) override {
    void* data = std::calloc(bytes == 0 ? 1 : bytes, 1);
    if (data == nullptr) throw std::bad_alloc();
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

 private:
  CpuGemm gemm_;
};

}  // namespace

std::unique_ptr<DeviceBackend> open_emulated_backend() {
  return std::make_unique<EmulatedBackend>();
}

}  // namespace leeway::kernels
