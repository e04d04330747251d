// How the bytes of a GPU get to the NICs: the GPU's memory registered with them, or copies in
// pinned memory of the host. Chosen once, when a worker starts, from what there is; the choice does
// no I/O.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace leeway::transport {

enum class GpuPath {
  kDmabuf,      // NICs reach its memory, which the driver gave away as a dmabuf
  kPeerModule,  // NICs reach its memory by address, through a kernel module
  kStaged,      // through pinned memory of the host
};

struct GpuPathFacts {
  struct Rail {
    std::string provider;
    bool fabric = true;          // not the memory of this host, to which GPUs' never belongs
    bool device_memory = false;  // fi_getinfo offered FI_HMEM
  };
  std::vector<Rail> rails;
  bool gpu_direct = false;        // the driver lets NICs reach this GPU's memory
  bool exports_dmabuf = false;    // the driver
  bool registers_dmabuf = false;  // libfabric: FI_MR_DMABUF, since 1.20
  std::string peer_module;        // loaded, or empty
  bool checksums = false;         // the host has to read what it pushes
};

struct GpuPathChoice {
  GpuPath path = GpuPath::kStaged;
  std::string text;  // for the log: what, and why
};

GpuPathChoice choose_gpu_path(const GpuPathFacts& facts);

// The kernel module that lets NICs reach GPU memory by address; empty: none is loaded. `root` is
// "/" but in tests.
std::string gpu_peer_module(const std::filesystem::path& root);

}  // namespace leeway::transport
