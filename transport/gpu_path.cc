#include "transport/gpu_path.h"

#include <fmt/format.h>

#include <algorithm>

namespace leeway::transport {
namespace {

GpuPathChoice staged(const std::string& why) {
  return {GpuPath::kStaged, fmt::format("staged in pinned memory of the host: {}", why)};
}

}  // namespace

GpuPathChoice choose_gpu_path(const GpuPathFacts& facts) {
  const auto is_fabric = [](const GpuPathFacts::Rail& rail) { return rail.fabric; };
  if (std::ranges::none_of(facts.rails, is_fabric))
    return staged("peers of one host share the host's memory alone");
  for (const GpuPathFacts::Rail& rail : facts.rails)
    if (rail.fabric && !rail.device_memory)
      return staged(fmt::format("provider {} offers no FI_HMEM here", rail.provider));
  if (facts.checksums) return staged("with checksums the host has to see every payload");
  if (!facts.gpu_direct) return staged("this GPU or its driver has no GPUDirect RDMA");
  if (facts.exports_dmabuf && facts.registers_dmabuf)
    return {GpuPath::kDmabuf, "registered with the NICs as a dmabuf (FI_HMEM_CUDA)"};
  if (!facts.peer_module.empty())
    return {
        GpuPath::kPeerModule,
        fmt::format("registered with the NICs by address (FI_HMEM_CUDA, {})", facts.peer_module)};
  return staged(fmt::format("{}, and no nvidia_peermem is loaded",
                            facts.exports_dmabuf ? "this libfabric registers no dmabuf (1.20 does)"
                                                 : "the driver exports no dmabuf"));
}

std::string gpu_peer_module(const std::filesystem::path& root) {
  std::error_code error;
  for (const char* module : {"nvidia_peermem", "efa_nv_peermem", "nv_peer_mem"})
    if (std::filesystem::exists(root / "sys/module" / module, error)) return module;
  return "";
}

}  // namespace leeway::transport
