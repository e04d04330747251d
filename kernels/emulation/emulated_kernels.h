// Our CUDA kernels running on the host: the table, and a backend over it whose device memory is
// ordinary memory and whose GEMM is the CPU's. Tests only. Called from one thread at a time.
#pragma once

#include <memory>

#include "kernels/device_backend.h"

namespace leeway::kernels {

namespace emulated {
const DeviceKernels& device_kernels();
}

std::unique_ptr<DeviceBackend> open_emulated_backend();

}  // namespace leeway::kernels
