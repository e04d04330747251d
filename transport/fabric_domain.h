// A libfabric domain, and memory registered with it. Included by this folder's .cc files only.
//
// Shared: the domain lives until the last registration of it is gone. Any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>

#include "common/result.h"
#include "transport/fabric_handles.h"
#include "transport/providers.h"
#include "transport/rail.h"

namespace leeway::transport {

// Member order is close order, reversed.
struct FabricDomain {
  explicit FabricDomain(Choice choice);  // throws ConfigError

  const ProviderTraits* traits;
  Info info;
  Fid<fid_fabric> fabric;
  Fid<fid_domain> domain;
  // What fi_getinfo returned decides, not the provider's name.
  bool virtual_addresses;  // peers name bytes by our virtual addresses, else by offsets
  bool provider_keys;      // the provider chooses keys, else we do
  std::atomic<std::uint64_t> next_key{1};
  std::atomic<std::size_t> pinned{0};  // bytes
};

class FabricRegistration final : public Registration {
 public:
  // kResourceExhausted: bytes, limit and remedy.
  static Result<std::unique_ptr<FabricRegistration>> make(std::shared_ptr<FabricDomain> domain,
                                                          const ForeignMemory& memory,
                                                          Access access);
  ~FabricRegistration() override;

  Window window() const noexcept override;
  void* descriptor() const noexcept { return fi_mr_desc(registration_.get()); }

 private:
  explicit FabricRegistration(std::shared_ptr<FabricDomain> domain) : domain_(std::move(domain)) {}
  Status count(std::size_t bytes);

  std::shared_ptr<FabricDomain> domain_;
  std::byte* data_ = nullptr;
  std::size_t counted_ = 0;  // bytes in domain_->pinned
  Fid<fid_mr> registration_;
};

// Whether a domain of this kind takes a GPU's memory as a dmabuf.
bool registers_dmabuf(const fi_info& info);

// Nothing when `bytes` more may be locked beside `locked`, else the line that explains it. A limit
// of RLIM_INFINITY, or the privilege CAP_IPC_LOCK, allows all.
std::string locked_memory_problem(std::size_t bytes, std::size_t locked, std::uint64_t limit,
                                  bool privileged);

// What to add to an error of a provider (negative, as libfabric returns it): the limit and the
// remedy when it may be that the provider's own buffers and queues could not be locked, else
// nothing.
std::string locked_memory_hint(const ProviderTraits& traits, std::int64_t error);

}  // namespace leeway::transport
