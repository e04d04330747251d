// Registered buffers for messages on their way out, one size, grown a block at a time up to a
// limit. Included by this folder's .cc files only; owned by the endpoint's thread.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "common/result.h"
#include "transport/region.h"

namespace leeway::transport {

class SendBuffers {
 public:
  struct Buffer {
    std::shared_ptr<Region> region;
    std::size_t offset = 0;
  };

  SendBuffers(std::shared_ptr<Domain> domain, std::size_t size, std::size_t limit)
      : domain_(std::move(domain)), size_(size), limit_(limit) {}

  // A buffer that holds `message`. kResourceExhausted when `limit` are on their way.
  Result<Buffer> fill(std::span<const std::byte> message);
  void give_back(Buffer buffer) { free_.push_back(std::move(buffer)); }

 private:
  Status grow();

  std::shared_ptr<Domain> domain_;
  const std::size_t size_;
  const std::size_t limit_;
  std::size_t made_ = 0;
  std::vector<Buffer> free_;
};

}  // namespace leeway::transport
