// Memory of another process of this host, mapped here: by a descriptor that it sent and of which
// nothing is believed. Move-only; any one thread at a time; unmapped by the destructor.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "common/result.h"

namespace leeway::transport {

class HostMapping {
 public:
  // Maps `size` bytes of it, or says what is wrong: only memory that the kernel keeps from
  // shrinking is mapped, else its owner could kill us by cutting it off under our hands (SIGBUS).
  static Result<HostMapping> map(int descriptor, std::size_t size);
  // The seals that map() wants, put on; nobody can take them off again.
  static Status seal(int descriptor);

  HostMapping() noexcept = default;
  HostMapping(HostMapping&& other) noexcept;
  HostMapping& operator=(HostMapping&& other) noexcept;
  ~HostMapping();

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }

  // Has the pages of that range ready, which lies within size(). A fault at each page of the first
  // copy costs as much as the copy; all pages of a large memory at once would hold up the thread.
  Status prepare(std::size_t offset, std::size_t size);

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::vector<bool> prepared_;  // by kBlock
};

}  // namespace leeway::transport
