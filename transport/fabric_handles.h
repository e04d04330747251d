// Move-only owners of libfabric's objects. Included by this folder's .cc files only.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include <memory>

namespace leeway::transport {

struct CloseFid {
  template <typename T>
  void operator()(T* object) const noexcept {
    fi_close(&object->fid);
  }
};
template <typename T>
using Fid = std::unique_ptr<T, CloseFid>;

struct FreeInfo {
  void operator()(fi_info* info) const noexcept { fi_freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, FreeInfo>;

// The version whose meaning of fields this code is written for. Debian 12 has 1.17; newer libraries
// keep it, older ones refuse it.
inline constexpr std::uint32_t kFabricVersion = FI_VERSION(1, 17);
// What is asked for with a GPU's memory: with dmabufs, where the headers have them.
#ifdef FI_MR_DMABUF
inline constexpr std::uint32_t kDeviceFabricVersion = FI_VERSION(1, 20);
#else
inline constexpr std::uint32_t kDeviceFabricVersion = kFabricVersion;
#endif

}  // namespace leeway::transport
