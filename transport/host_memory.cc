#include "transport/host_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

namespace leeway::transport {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::size_t page_size() {
  static const auto kSize = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return kSize;
}

}  // namespace

Result<HostMemory> HostMemory::make(std::size_t bytes, Kind kind) {
  HostMemory memory;
  memory.size_ = bytes;
  if (bytes > SIZE_MAX / 2) return tl::unexpected(memory.refused(ENOMEM));
  const std::size_t page = page_size();
  memory.mapped_ = std::max(page, (bytes + page - 1) / page * page);
  auto status = kind == Kind::kPrivate ? memory.map_private() : memory.map_shareable();
  if (status) status = memory.touch();
  if (!status) return tl::unexpected(std::move(status).error());
  return memory;
}

HostMemory::HostMemory(HostMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      mapped_(std::exchange(other.mapped_, 0)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

HostMemory& HostMemory::operator=(HostMemory&& other) noexcept {
  HostMemory old(std::move(*this));
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  mapped_ = std::exchange(other.mapped_, 0);
  descriptor_ = std::exchange(other.descriptor_, -1);
  return *this;
}

HostMemory::~HostMemory() {
  if (data_ != nullptr) munmap(data_, mapped_);
  if (descriptor_ >= 0) close(descriptor_);
}

Error HostMemory::refused(int error) const {
  return {Code::kResourceExhausted,
          fmt::format("{} bytes of memory for the fabric: {}; use a smaller model or batch, more "
                      "servers, or a larger memory limit (`ulimit -v`, cgroup)",
                      size_, std::strerror(error))};
}

Status HostMemory::map_private() {
  const std::size_t page = page_size();
  const std::size_t alignment = size_ >= kHugePage ? kHugePage : page;
  const std::size_t room = mapped_ + alignment - page;
  void* mapped = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return tl::unexpected(refused(errno));
  // Keep the aligned part of it.
  auto* const start = static_cast<std::byte*>(mapped);
  const std::size_t skip =
      (alignment - reinterpret_cast<std::uintptr_t>(start) % alignment) % alignment;
  if (skip != 0) munmap(start, skip);
  if (room - skip > mapped_) munmap(start + skip + mapped_, room - skip - mapped_);
  data_ = start + skip;
  if (alignment == kHugePage) madvise(data_, mapped_, MADV_HUGEPAGE);
  return {};
}

Status HostMemory::map_shareable() {
  descriptor_ = memfd_create("leeway", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor_ < 0) return tl::unexpected(refused(errno));
  if (ftruncate(descriptor_, static_cast<off_t>(mapped_)) != 0 ||
      fcntl(descriptor_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return tl::unexpected(refused(errno));
  void* mapped = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (mapped == MAP_FAILED) return tl::unexpected(refused(errno));
  data_ = static_cast<std::byte*>(mapped);
  madvise(data_, mapped_, MADV_HUGEPAGE);  // where the host gives shared memory any
  return {};
}

// Every page now: a first touch in the middle of a transfer costs 20 times a copy. The call reports
// missing memory where a store would kill the process; older kernels do not know it.
Status HostMemory::touch() {
  if (madvise(data_, mapped_, MADV_POPULATE_WRITE) == 0) return {};
  if (errno != EINVAL) return tl::unexpected(refused(errno));
  const std::size_t page = page_size();
  for (std::size_t at = 0; at < mapped_; at += page)
    static_cast<volatile std::byte*>(data_)[at] = std::byte{0};
  return {};
}

}  // namespace leeway::transport
