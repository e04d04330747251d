// The CUDA backend; compiled only where the toolkit is (LEEWAY_HAS_CUDA).
#pragma once

#include <memory>
#include <string>

#include "kernels/device_backend.h"

namespace leeway::kernels {

namespace cuda {
const DeviceKernels& device_kernels();
}

// Null, and why, when no driver or device answers.
std::unique_ptr<DeviceBackend> open_cuda_backend(std::string& reason);

}  // namespace leeway::kernels
