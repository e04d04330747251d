#include "kernels/backend.h"
#ifdef LEEWAY_HAS_CUDA
#include "kernels/cuda_backend.h"
#endif

namespace leeway::kernels {

std::unique_ptr<Backend> open_backend(BackendChoice choice) {
  if (choice == BackendChoice::kCpu) return open_cpu_backend();
#ifdef LEEWAY_HAS_CUDA
  std::string reason;
  if (auto backend = open_cuda_backend(reason)) return backend;
#else
  const std::string reason = "this build has none (configure with -Dcuda=enabled)";
#endif
  if (choice == BackendChoice::kCuda)
    throw ConfigError("backend cuda: no CUDA device: " + reason + "; use backend cpu or auto");
  return open_cpu_backend();
}

}  // namespace leeway::kernels
