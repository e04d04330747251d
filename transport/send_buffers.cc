#include "transport/send_buffers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace leeway::transport {
namespace {

constexpr std::size_t kBlock = 64;

}  // namespace

Result<SendBuffers::Buffer> SendBuffers::fill(std::span<const std::byte> message) {
  if (free_.empty())
    if (auto status = grow(); !status) return tl::unexpected(std::move(status).error());
  Buffer buffer = std::move(free_.back());
  free_.pop_back();
  std::copy(message.begin(), message.end(),
            buffer.region->bytes().begin() + static_cast<std::ptrdiff_t>(buffer.offset));
  return buffer;
}

Status SendBuffers::grow() {
  const std::size_t count = std::min(kBlock, limit_ - made_);
  if (count == 0)
    return fail(
        Code::kResourceExhausted,
        fmt::format("{} messages are on their way already: the peers do not take them", limit_));
  auto region = Region::make(domain_, count * size_, Access::kOwn);
  if (!region) return tl::unexpected(std::move(region).error());
  for (std::size_t i = 0; i < count; ++i) free_.push_back({*region, i * size_});
  made_ += count;
  return {};
}

}  // namespace leeway::transport
