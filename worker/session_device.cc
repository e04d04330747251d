#include "worker/session_device.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "common/log.h"
#include "transport/gpu_buffer.h"
#include "worker/device_gradients.h"

namespace leeway::worker {

std::optional<SessionDevice> SessionDevice::open(const SessionOptions& options,
                                                 const transport::CudaDriver* driver) {
  if (options.device == nullptr || options.device->on_host()) return std::nullopt;
  const auto refuse = [&](const std::string& why) {
    throw SessionError(
        fmt::format("worker.{}: device {}: {}", options.rank, options.device->name(), why));
  };
  const auto place = options.device->cuda();
  if (!place) refuse("it has memory of its own and is not CUDA's");
  std::string why;
  if (driver == nullptr) driver = transport::cuda_driver(why);
  if (driver == nullptr) refuse(why);
  auto gpu = transport::Gpu::open(*driver, place->device, place->stream);
  if (!gpu) refuse(gpu.error().message);
  return SessionDevice(*options.device, std::move(*gpu));
}

Result<std::unique_ptr<GradientTarget>> SessionDevice::make_buffers(
    DataPlane& data, const Layout& layout, const JobSettings& settings) const {
  if (settings.local_steps > 1)
    return fail(
        Code::kUnsupported,
        fmt::format("local_steps = {} are taken by the CPU, and this worker's gradients are "
                    "on {}: keep them in host memory",
                    settings.local_steps, backend_->name()));
  const bool checksum = settings.checksum.value != "off";
  const auto choice =
      transport::choose_gpu_path(transport::gpu_path_facts(data.info(), *gpu_, checksum));
  log::info("weights and gradients on {}: {}", backend_->name(), choice.text);
  const GradientCodec codec = settings.gradients();
  if (auto s = data.allocate_on(gpu_, choice.path, layout, settings.pull_type(), codec, checksum);
      !s)
    return tl::unexpected(std::move(s).error());
  return DeviceGradients::make(*backend_, gpu_, data.device_gradients(), layout, codec);
}

void SessionDevice::settle() const noexcept {
  if (auto s = gpu_->synchronize(); !s) log::warning("{}", s.error().message);
}

}  // namespace leeway::worker
