// The fabric's domain, and memory registered with it. Included by this folder's .cc files only.
//
// Both are shared: the domain lives until the last region of it is gone, and a region until its
// owner and every transfer that the provider may still be doing on it are gone. Any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "common/result.h"
#include "transport/endpoint.h"
#include "transport/fabric_handles.h"
#include "transport/providers.h"

namespace leeway::transport {

// Member order is close order, reversed.
struct Domain {
  explicit Domain(Choice choice);  // throws ConfigError

  const ProviderTraits* traits;
  Info info;
  Fid<fid_fabric> fabric;
  Fid<fid_domain> domain;
  // What fi_getinfo returned decides, not the provider's name.
  bool virtual_addresses;  // peers name bytes by our virtual addresses, else by offsets
  bool provider_keys;      // the provider chooses keys, else we do
  bool ask_delivery;       // writes carry FI_DELIVERY_COMPLETE
  std::atomic<std::uint64_t> next_key{1};
  std::atomic<std::size_t> pinned{0};  // bytes
};

class Region {
 public:
  // Page-aligned, zeroed, touched, registered. kResourceExhausted: bytes, limit and remedy.
  static Result<std::shared_ptr<Region>> make(std::shared_ptr<Domain> domain, std::size_t bytes,
                                              Access access);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  std::span<std::byte> bytes() const noexcept { return {data_, size_}; }
  void* descriptor() const noexcept { return fi_mr_desc(registration_.get()); }
  std::uint64_t remote_address(std::size_t offset) const noexcept;
  std::uint64_t remote_key() const noexcept { return fi_mr_key(registration_.get()); }

 private:
  explicit Region(std::shared_ptr<Domain> domain) : domain_(std::move(domain)) {}
  Status map(std::size_t bytes);
  Status enlist(Access access);

  std::shared_ptr<Domain> domain_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;     // asked for
  std::size_t mapped_ = 0;   // whole pages
  std::size_t counted_ = 0;  // bytes in domain_->pinned
  Fid<fid_mr> registration_;
};

// Nothing when `bytes` more may be locked beside `locked`, else the line that explains it. A limit
// of RLIM_INFINITY, or the privilege CAP_IPC_LOCK, allows all.
std::string locked_memory_problem(std::size_t bytes, std::size_t locked, std::uint64_t limit,
                                  bool privileged);

// What to add to an error of a provider (negative, as libfabric returns it): the limit and the
// remedy when it may be that the provider's own buffers and queues could not be locked, else
// nothing.
std::string locked_memory_hint(const ProviderTraits& traits, std::int64_t error);

}  // namespace leeway::transport
