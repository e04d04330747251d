#include "transport/gpu_buffer.h"

namespace leeway::transport {

Result<GpuBuffer> GpuBuffer::make(std::shared_ptr<Gpu> gpu, Endpoint& endpoint, std::size_t bytes,
                                  GpuPath path) {
  GpuBuffer made;
  made.gpu_ = std::move(gpu);
  auto device = made.gpu_->allocate(bytes);
  if (!device) return tl::unexpected(std::move(device).error());
  made.device_ = std::move(*device);

  if (path == GpuPath::kStaged) {
    auto image = endpoint.allocate(bytes, Access::kPeers);
    if (!image) return tl::unexpected(std::move(image).error());
    made.memory_ = std::move(*image);
    if (bytes == 0) return made;
    auto pinned = made.gpu_->pin(made.memory_.bytes());
    if (!pinned) return tl::unexpected(std::move(pinned).error());
    made.pinned_ = std::move(*pinned);
    return made;
  }

  if (auto open = made.gpu_->open_to_nics(made.device()); !open)
    return tl::unexpected(std::move(open).error());
  DevicePlace place{.ordinal = made.gpu_->ordinal()};
  if (path == GpuPath::kDmabuf) {
    auto dmabuf = made.gpu_->dmabuf(made.device(), bytes);
    if (!dmabuf) return tl::unexpected(std::move(dmabuf).error());
    made.dmabuf_ = std::move(*dmabuf);
    place.dmabuf = made.dmabuf_.get();
  }
  auto registered = endpoint.enlist(
      {.data = made.device(), .size = bytes, .owner = made.device_, .device = place},
      Access::kPeers);
  if (!registered) return tl::unexpected(std::move(registered).error());
  made.memory_ = std::move(*registered);
  return made;
}

Status GpuBuffer::publish(std::span<const Range> ranges, std::function<void()> ready) {
  if (auto s = gpu_->after_program(); !s) return s;
  if (pinned_)
    for (const Range& range : ranges)
      if (auto s = gpu_->to_host(memory_.bytes().data() + range.offset, device() + range.offset,
                                 range.size);
          !s)
        return s;
  return gpu_->then(std::move(ready));
}

Status GpuBuffer::take_in(std::span<const Range> ranges) {
  if (!pinned_) return {};
  for (const Range& range : ranges)
    if (auto s = gpu_->to_device(device() + range.offset, memory_.bytes().data() + range.offset,
                                 range.size);
        !s)
      return s;
  return {};
}

GpuPathFacts gpu_path_facts(const EndpointInfo& info, const Gpu& gpu, bool checksums) {
  GpuPathFacts facts{.gpu_direct = gpu.direct(),
                     .exports_dmabuf = gpu.exports_dmabuf(),
                     .registers_dmabuf = true,
                     .peer_module = gpu_peer_module("/"),
                     .checksums = checksums};
  for (const EndpointInfo::Rail& rail : info.rails) {
    const bool fabric = rail.fabric != "shm";
    facts.rails.push_back({rail.provider, fabric, rail.device_memory});
    if (fabric) facts.registers_dmabuf = facts.registers_dmabuf && rail.device_dmabuf;
  }
  return facts;
}

}  // namespace leeway::transport
