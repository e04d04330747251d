// The gradients of a worker that computes on a GPU: encoded and checked there, then published to
// the servers while the program goes on. Whether an element is finite is known when the step ends.
//
// Called from the program's thread; what it does after a publication runs on a thread of the CUDA
// driver's. Backend, GPU and buffer outlive it, and whoever owns it synchronizes the GPU first.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "transport/gpu_buffer.h"
#include "transport/host_memory.h"
#include "worker/device_top_k.h"
#include "worker/gradient_buffer.h"

namespace leeway::worker {

// Where parts lie in a flat buffer with elements of `width` bytes; neighbours in one.
std::vector<transport::GpuBuffer::Range> ranges_of(const Layout& layout,
                                                   const std::vector<PartitionId>& parts,
                                                   std::size_t width);
// And where their payloads do. What fills the lines of a payload goes with its neighbour.
std::vector<transport::GpuBuffer::Range> ranges_of(const std::vector<Place>& places,
                                                   const std::vector<PartitionId>& parts);

class DeviceGradients final : public GradientTarget {
 public:
  // `buffer` holds the payloads of this layout and codec.
  static Result<std::unique_ptr<DeviceGradients>> make(kernels::Backend& backend,
                                                       std::shared_ptr<transport::Gpu> gpu,
                                                       transport::GpuBuffer& buffer,
                                                       const Layout& layout,
                                                       const GradientCodec& codec);

  void begin_step(float loss_scale) override;
  // `gradient`, here and below, is in the backend's memory, and may be overwritten by later
  // operations of it.
  bool encode(const Layout::Tensor& tensor, std::span<const float> gradient, float factor) override;
  std::span<const float> add_up(std::size_t parameter, std::span<const float> gradient,
                                bool first) override;
  void poison() override;
  void square(std::size_t parameter, std::span<const float> gradient) override;
  double squares() override;
  bool asynchronous() const noexcept override { return true; }
  // `send` blocks no longer than the endpoint's queue does.
  Status publish(std::vector<PartitionId> parts, std::function<void()> send) override;
  // For the program's operations, too: servers may write new weights.
  Result<bool> finish() override;
  void end_step(bool committed, float factor) override;
  std::vector<float> residual() override {
    return top_k_ ? top_k_->residual() : std::vector<float>();
  }
  void set_residual(std::span<const float> residual) override {
    if (top_k_) top_k_->set_residual(residual);
  }

 private:
  DeviceGradients(kernels::Backend& backend, std::shared_ptr<transport::Gpu> gpu,
                  transport::GpuBuffer& buffer, const Layout& layout, const GradientCodec& codec,
                  transport::HostMemory seen)
      : backend_(backend),
        gpu_(std::move(gpu)),
        buffer_(buffer),
        layout_(layout),
        codec_(codec),
        places_(payload_places(layout, codec)),
        not_finite_(backend.allocate(sizeof(std::int32_t))),
        seen_(std::move(seen)) {}
  Status look();
  bool finite() const noexcept;

  kernels::Backend& backend_;
  const std::shared_ptr<transport::Gpu> gpu_;
  transport::GpuBuffer& buffer_;
  const Layout& layout_;
  const GradientCodec codec_;
  const std::vector<Place> places_;  // by part
  kernels::Buffer not_finite_;       // one int32, as kernels::Backend sets it
  std::optional<DeviceTopK> top_k_;
  std::vector<kernels::EncodePiece> pieces_;  // of the tensor that is encoded
  kernels::Buffer sums_;                      // flat as in the layout; made when it is first needed
  // Of kernels::kNormBlock elements each: made when it is first asked for.
  kernels::Buffer squares_;
  std::vector<std::size_t> first_square_;  // by parameter, and the end
  transport::HostMemory seen_;             // its value when the copies so far began
  std::shared_ptr<void> pinned_;
};

}  // namespace leeway::worker
