#include "transport/region.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace leeway::transport {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::size_t page_size() {
  static const auto size = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

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

// Whether process_vm_readv and its sister work on processes of the same user: sandboxes forbid the
// call, Yama the target.
bool kernel_copies_between_processes() {
  char from = 1, to = 0;
  const iovec local{&to, 1}, remote{&from, 1};
  if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) != 1) return false;
  std::FILE* file = std::fopen("/proc/sys/kernel/yama/ptrace_scope", "r");
  if (file == nullptr) return true;
  const int scope = std::fgetc(file);
  std::fclose(file);
  return scope == '0';
}

std::string in_kib(std::uint64_t bytes) { return fmt::format("{} KiB", (bytes + 1023) / 1024); }

}  // namespace

std::string locked_memory_problem(std::size_t bytes, std::size_t locked, std::uint64_t limit,
                                  bool privileged) {
  if (privileged || limit == RLIM_INFINITY) return {};
  if (locked <= limit && bytes <= limit - locked) return {};
  return fmt::format(
      "{} bytes of memory for the fabric cannot be locked: {} are locked already and `ulimit -l` "
      "is "
      "{}; raise it (`ulimit -l unlimited`, LimitMEMLOCK=infinity for a service)",
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

Domain::Domain(Choice choice) : traits(choice.traits), info(std::move(choice.info)) {
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
  ask_delivery = traits->delivery == Delivery::kAsked ||
                 (traits->delivery == Delivery::kByKernel && !kernel_copies_between_processes());
}

Result<std::shared_ptr<Region>> Region::make(std::shared_ptr<Domain> domain, std::size_t bytes,
                                             Access access) {
  std::shared_ptr<Region> region(new Region(std::move(domain)));
  if (auto status = region->map(bytes); !status) return tl::unexpected(std::move(status).error());
  if (auto status = region->enlist(access); !status)
    return tl::unexpected(std::move(status).error());
  return region;
}

Status Region::map(std::size_t bytes) {
  const std::size_t page = page_size();
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : page;
  const auto refused = [&](int error) {
    return fail(Code::kResourceExhausted,
                fmt::format("{} bytes of memory for the fabric: {}; use a smaller model or batch, "
                            "more servers, or a larger memory limit (`ulimit -v`, cgroup)",
                            bytes, std::strerror(error)));
  };
  if (bytes > SIZE_MAX / 2) return refused(ENOMEM);
  const std::size_t length = std::max(page, (bytes + page - 1) / page * page);
  const std::size_t room = length + alignment - page;
  void* mapped = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return refused(errno);
  // Keep the aligned part of it.
  auto* const start = static_cast<std::byte*>(mapped);
  const std::size_t skip =
      (alignment - reinterpret_cast<std::uintptr_t>(start) % alignment) % alignment;
  if (skip != 0) munmap(start, skip);
  if (room - skip > length) munmap(start + skip + length, room - skip - length);
  data_ = start + skip;
  size_ = bytes;
  mapped_ = length;
  if (alignment == kHugePage) madvise(data_, mapped_, MADV_HUGEPAGE);
  // Touch every page now: a first touch in the middle of a transfer costs 20 times a copy. The call
  // reports missing memory where a store would kill the process; older kernels do not know it.
  if (madvise(data_, mapped_, MADV_POPULATE_WRITE) != 0) {
    if (errno != EINVAL) return refused(errno);
    for (std::size_t at = 0; at < mapped_; at += page)
      static_cast<volatile std::byte*>(data_)[at] = std::byte{0};
  }
  return {};
}

Status Region::enlist(Access access) {
  if (domain_->traits->pins_memory) {
    counted_ = mapped_;
    const std::size_t before = domain_->pinned.fetch_add(counted_);
    auto problem = locked_memory_problem(mapped_, before, memlock_limit(), may_lock_all());
    if (!problem.empty()) return fail(Code::kResourceExhausted, std::move(problem));
  }
  const std::uint64_t rights = FI_SEND | FI_RECV | FI_READ | FI_WRITE |
                               (access == Access::kPeers ? FI_REMOTE_READ | FI_REMOTE_WRITE : 0);
  const std::uint64_t key = domain_->provider_keys ? 0 : domain_->next_key.fetch_add(1);
  fid_mr* registration = nullptr;
  const int error =
      fi_mr_reg(domain_->domain.get(), data_, mapped_, rights, 0, key, 0, &registration, nullptr);
  if (error != 0)
    return fail(
        Code::kResourceExhausted,
        fmt::format("registering {} bytes with provider {}: {}; `ulimit -l` is {}, raise it "
                    "if that is less than the memory of this process",
                    mapped_, domain_->info->fabric_attr->prov_name, fi_strerror(-error),
                    memlock_limit() == RLIM_INFINITY ? "unlimited" : in_kib(memlock_limit())));
  registration_.reset(registration);
  return {};
}

Region::~Region() {
  registration_.reset();
  if (data_ != nullptr) munmap(data_, mapped_);
  domain_->pinned.fetch_sub(counted_);
}

std::uint64_t Region::remote_address(std::size_t offset) const noexcept {
  return domain_->virtual_addresses ? reinterpret_cast<std::uintptr_t>(data_) + offset : offset;
}

}  // namespace leeway::transport
