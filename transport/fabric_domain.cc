#include "transport/fabric_domain.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>

namespace leeway::transport {
namespace {

constexpr std::size_t kPage = 4096;

std::uint64_t memlock_limit() {
  rlimit limit{};
  return getrlimit(RLIMIT_MEMLOCK, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

// CAP_IPC_LOCK, bit 14 of the effective set: it lifts RLIMIT_MEMLOCK.
bool may_lock_all() {
  std::FILE* file = std::fopen("/proc/self/status", "r");
  if (file == nullptr) return false;
  char line[256];
  unsigned long long effective = 0;
  while (std::fgets(line, sizeof line, file) != nullptr)
    if (std::sscanf(line, "CapEff: %llx", &effective) == 1) break;
  std::fclose(file);
  return (effective >> 14 & 1) != 0;
}

std::string in_kib(std::uint64_t bytes) { return fmt::format("{} KiB", (bytes + 1023) / 1024); }

}  // namespace

std::string locked_memory_problem(std::size_t bytes, std::size_t locked, std::uint64_t limit,
                                  bool privileged) {
  if (privileged || limit == RLIM_INFINITY) return {};
  if (locked <= limit && bytes <= limit - locked) return {};
  return fmt::format(
      "{} bytes of memory for the fabric cannot be locked: {} are locked already and `ulimit -l` "
      "is {}; raise it (`ulimit -l unlimited`, LimitMEMLOCK=infinity for a service)",
      bytes, in_kib(locked), in_kib(limit));
}

std::string locked_memory_hint(const ProviderTraits& traits, std::int64_t error) {
  const std::uint64_t limit = memlock_limit();
  if (!traits.pins_memory || error != -FI_ENOMEM || limit == RLIM_INFINITY) return {};
  return fmt::format(
      " (it locks memory, and `ulimit -l` is {}; raise it: `ulimit -l unlimited`, "
      "LimitMEMLOCK=infinity for a service)",
      in_kib(limit));
}

FabricDomain::FabricDomain(Choice choice) : traits(choice.traits), info(std::move(choice.info)) {
  const auto check = [&](int error, const char* what) {
    if (error != 0)
      throw ConfigError(fmt::format("fabric {}: {} of provider {} failed: {}{}", traits->family,
                                    what, info->fabric_attr->prov_name, fi_strerror(-error),
                                    locked_memory_hint(*traits, error)));
  };
  fid_fabric* new_fabric = nullptr;
  check(fi_fabric(info->fabric_attr, &new_fabric, nullptr), "fi_fabric");
  fabric.reset(new_fabric);
  fid_domain* new_domain = nullptr;
  check(fi_domain(fabric.get(), info.get(), &new_domain, nullptr), "fi_domain");
  domain.reset(new_domain);
  const int mode = info->domain_attr->mr_mode;
  virtual_addresses = mode == FI_MR_BASIC || (mode & FI_MR_VIRT_ADDR) != 0;
  provider_keys = mode == FI_MR_BASIC || (mode & FI_MR_PROV_KEY) != 0;
}

// Explicit dmabufs came with 1.20; of a program built before that, and of a domain opened for an
// older version, libfabric takes addresses alone.
bool registers_dmabuf([[maybe_unused]] const fi_info& info) {
#ifdef FI_MR_DMABUF
  return FI_VERSION_GE(fi_version(), FI_VERSION(1, 20)) &&
         FI_VERSION_GE(info.fabric_attr->api_version, FI_VERSION(1, 20));
#else
  return false;
#endif
}

Status FabricRegistration::count(std::size_t bytes) {
  const std::size_t pages = (bytes + kPage - 1) / kPage * kPage;
  counted_ = pages;
  const std::size_t before = domain_->pinned.fetch_add(pages);
  auto problem = locked_memory_problem(pages, before, memlock_limit(), may_lock_all());
  if (!problem.empty()) return fail(Code::kResourceExhausted, std::move(problem));
  return {};
}

Result<std::unique_ptr<FabricRegistration>> FabricRegistration::make(
    std::shared_ptr<FabricDomain> domain, const ForeignMemory& memory, Access access) {
  std::unique_ptr<FabricRegistration> made(new FabricRegistration(std::move(domain)));
  FabricDomain& at = *made->domain_;
  const std::size_t bytes = std::max<std::size_t>(memory.size, 1);
  made->data_ = memory.data;
  if (at.traits->pins_memory && !memory.device)
    if (auto fits = made->count(bytes); !fits) return tl::unexpected(std::move(fits).error());

  const iovec range{.iov_base = memory.data, .iov_len = bytes};
  fi_mr_attr attributes{};
  attributes.mr_iov = &range;
  attributes.iov_count = 1;
  attributes.access = FI_SEND | FI_RECV | FI_READ | FI_WRITE |
                      (access == Access::kPeers ? FI_REMOTE_READ | FI_REMOTE_WRITE : 0);
  attributes.requested_key = at.provider_keys ? 0 : at.next_key.fetch_add(1);
  std::uint64_t flags = 0;
  if (memory.device) {
    attributes.iface = FI_HMEM_CUDA;
    attributes.device.cuda = memory.device->ordinal;
  }
#ifdef FI_MR_DMABUF
  fi_mr_dmabuf dmabuf{};
  if (memory.device && memory.device->dmabuf >= 0) {
    dmabuf.fd = memory.device->dmabuf;
    dmabuf.len = bytes;
    dmabuf.base_addr = memory.data;
    attributes.dmabuf = &dmabuf;  // in place of mr_iov: a union
    flags = FI_MR_DMABUF;
  }
#endif
  fid_mr* registration = nullptr;
  const int error = fi_mr_regattr(at.domain.get(), &attributes, flags, &registration);
  if (error != 0 && memory.device)
    return fail(
        Code::kResourceExhausted,
        fmt::format("registering {} bytes of GPU {} with provider {}: {}; leeway-run doctor "
                    "says how NICs reach GPU memory here",
                    bytes, memory.device->ordinal, at.info->fabric_attr->prov_name,
                    fi_strerror(-error)));
  if (error != 0)
    return fail(
        Code::kResourceExhausted,
        fmt::format("registering {} bytes with provider {}: {}; `ulimit -l` is {}, raise it "
                    "if that is less than the memory of this process",
                    bytes, at.info->fabric_attr->prov_name, fi_strerror(-error),
                    memlock_limit() == RLIM_INFINITY ? "unlimited" : in_kib(memlock_limit())));
  made->registration_.reset(registration);
  return made;
}

FabricRegistration::~FabricRegistration() {
  registration_.reset();
  domain_->pinned.fetch_sub(counted_);
}

Window FabricRegistration::window() const noexcept {
  return {domain_->virtual_addresses ? reinterpret_cast<std::uintptr_t>(data_) : 0,
          fi_mr_key(registration_.get())};
}

}  // namespace leeway::transport
