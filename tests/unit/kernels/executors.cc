#include "tests/unit/kernels/executors.h"

#include "kernels/emulation/emulated_kernels.h"

namespace leeway::kernels::test {
namespace {

struct Opened {
  std::unique_ptr<Backend> cpu = open_cpu_backend();
  std::unique_ptr<Backend> emulated = open_emulated_backend();
  std::unique_ptr<Backend> cuda;
  std::vector<Backend*> all{cpu.get(), emulated.get()};
  std::vector<DeviceBackend*> devices{dynamic_cast<DeviceBackend*>(emulated.get())};

  Opened() {
    try {
      cuda = open_backend(BackendChoice::kCuda);
    } catch (const ConfigError&) {
      return;  // no GPU here
    }
    all.push_back(cuda.get());
    devices.push_back(dynamic_cast<DeviceBackend*>(cuda.get()));
  }
};

const Opened& opened() {
  static const Opened kOpened;
  return kOpened;
}

}  // namespace

const std::vector<Backend*>& backends() { return opened().all; }
const std::vector<DeviceBackend*>& device_backends() { return opened().devices; }

}  // namespace leeway::kernels::test
