#include "transport/host_mapping.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace leeway::transport {
namespace {

constexpr std::size_t kBlock = std::size_t{1} << 20;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

}  // namespace

Status HostMapping::seal(int descriptor) {
  if (fcntl(descriptor, F_ADD_SEALS, kSeals | F_SEAL_SEAL) == 0) return {};
  return fail(Code::kInternal, fmt::format("sealing memory: {}", std::strerror(errno)));
}

Result<HostMapping> HostMapping::map(int descriptor, std::size_t size) {
  const int seals = fcntl(descriptor, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals)
    return fail(Code::kRefused, "shared memory that its owner could shrink");
  // Huge pages of the reserved kind are sealed files too, but may be missing when touched.
  struct statfs system {};
  if (fstatfs(descriptor, &system) != 0 || system.f_type != TMPFS_MAGIC)
    return fail(Code::kRefused, "shared memory of an unknown kind");
  struct stat status {};
  if (fstat(descriptor, &status) != 0 || status.st_size < 0 ||
      static_cast<std::size_t>(status.st_size) < size)
    return fail(Code::kRefused, "shared memory smaller than was said");
  HostMapping mapping;
  mapping.size_ = size;
  if (size == 0) return mapping;
  mapping.prepared_.resize((size + kBlock - 1) / kBlock);
  void* mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    return fail(error == ENOMEM ? Code::kResourceExhausted : Code::kRefused,
                fmt::format("mapping {} bytes of a peer's memory: {}{}", size, std::strerror(error),
                            error == ENOMEM ? "; raise `ulimit -v` or vm.max_map_count" : ""));
  }
  mapping.data_ = static_cast<std::byte*>(mapped);
  return mapping;
}

HostMapping::HostMapping(HostMapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      prepared_(std::move(other.prepared_)) {}

HostMapping& HostMapping::operator=(HostMapping&& other) noexcept {
  const HostMapping old(std::move(*this));
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  prepared_ = std::move(other.prepared_);
  return *this;
}

HostMapping::~HostMapping() {
  if (data_ != nullptr) munmap(data_, size_);
}

Status HostMapping::prepare(std::size_t offset, std::size_t size) {
  if (size == 0) return {};
  for (std::size_t block = offset / kBlock; block <= (offset + size - 1) / kBlock; ++block) {
    if (prepared_[block]) continue;
    const std::size_t start = block * kBlock;
    // EINVAL: a kernel that does not know it. The copy itself will fault the pages in.
    if (madvise(data_ + start, std::min(kBlock, size_ - start), MADV_POPULATE_WRITE) != 0 &&
        errno != EINVAL)
      return fail(Code::kResourceExhausted,
                  fmt::format("touching a peer's memory: {}", std::strerror(errno)));
    prepared_[block] = true;
  }
  return {};
}

}  // namespace leeway::transport
