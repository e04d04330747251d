#include "transport/fabric_domain.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <cstdio>

namespace leeway::transport {
namespace {

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

Result<std::unique_ptr<FabricRegistration>> FabricRegistration::make(
    std::shared_ptr<FabricDomain> domain, const HostMemory& memory, Access access) {
  std::unique_ptr<FabricRegistration> made(new FabricRegistration(std::move(domain)));
  FabricDomain& at = *made->domain_;
  const std::size_t bytes = memory.mapped();
  made->data_ = memory.bytes().data();
  if (at.traits->pins_memory) {
    made->counted_ = bytes;
    const std::size_t before = at.pinned.fetch_add(bytes);
    auto problem = locked_memory_problem(bytes, before, memlock_limit(), may_lock_all());
    if (!problem.empty()) return fail(Code::kResourceExhausted, std::move(problem));
  }
  const std::uint64_t rights = FI_SEND | FI_RECV | FI_READ | FI_WRITE |
                               (access == Access::kPeers ? FI_REMOTE_READ | FI_REMOTE_WRITE : 0);
  const std::uint64_t key = at.provider_keys ? 0 : at.next_key.fetch_add(1);
  fid_mr* registration = nullptr;
  const int error =
      fi_mr_reg(at.domain.get(), made->data_, bytes, rights, 0, key, 0, &registration, nullptr);
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
