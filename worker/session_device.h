// The GPU that a session's program computes on, and how its memory meets the data plane.
//
// Called from the program's thread. The backend outlives it.
#pragma once

#include <memory>
#include <optional>

#include "kernels/backend.h"
#include "transport/gpu.h"
#include "worker/data_plane.h"
#include "worker/gradient_buffer.h"
#include "worker/layout.h"
#include "worker/session.h"

namespace leeway::worker {

class SessionDevice {
 public:
  // Nothing when the program's memory is the host's. `driver` is CUDA's, null: this machine's.
  // Throws SessionError.
  static std::optional<SessionDevice> open(const SessionOptions& options,
                                           const transport::CudaDriver* driver);

  // Weights and gradients in the device's memory, and what encodes gradients there. `data` and
  // `layout` outlive what is returned.
  Result<std::unique_ptr<GradientTarget>> make_buffers(DataPlane& data, const Layout& layout,
                                                       const JobSettings& settings) const;
  // New weights have come: the program's next operations see them.
  Status weights_arrived() const { return gpu_->before_program(); }
  // Waits until nothing that was asked of it is under way.
  void settle() const noexcept;

 private:
  SessionDevice(kernels::Backend& backend, std::shared_ptr<transport::Gpu> gpu)
      : backend_(&backend), gpu_(std::move(gpu)) {}

  kernels::Backend* backend_;
  std::shared_ptr<transport::Gpu> gpu_;
};

}  // namespace leeway::worker
