// Host memory that rails move: page-aligned, zeroed, touched, and, where peers of the same host are
// to reach it, with a descriptor that they can map. Move-only; any thread.
#pragma once

#include <cstddef>
#include <span>

#include "common/result.h"
#include "transport/endpoint.h"

namespace leeway::transport {

class HostMemory {
 public:
  // kPrivate is anonymous memory in huge pages where there are any; kShareable is a memfd that can
  // neither shrink nor grow (sealed), so that a peer that maps it can rely on its size.
  enum class Kind { kPrivate, kShareable };

  // kResourceExhausted: bytes, limit and remedy.
  static Result<HostMemory> make(std::size_t bytes, Kind kind);
  HostMemory() noexcept = default;
  HostMemory(HostMemory&& other) noexcept;
  HostMemory& operator=(HostMemory&& other) noexcept;
  ~HostMemory();

  std::span<std::byte> bytes() const noexcept { return {data_, size_}; }  // as asked for
  int descriptor() const noexcept { return descriptor_; }                 // -1 for kPrivate
  // As rails are told of it.
  ForeignMemory view() const noexcept {
    return {.data = data_, .size = size_, .owner = nullptr, .descriptor = descriptor_};
  }

 private:
  Status map_private();
  Status map_shareable();
  Status touch();
  Error refused(int error) const;

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t mapped_ = 0;
  int descriptor_ = -1;
};

}  // namespace leeway::transport
