#include "transport/stream_registry.h"

#include "transport/endpoint.h"
#include "transport/random_number.h"

namespace leeway::transport {

std::uint64_t StreamRegistry::enlist(std::span<std::byte> memory) {
  const std::scoped_lock lock(mutex_);
  while (true) {
    const std::uint64_t key = random_number();
    if (key != 0 && key != kNoWindow.key && memories_.try_emplace(key, memory).second) return key;
  }
}

void StreamRegistry::drop(std::uint64_t key) {
  const std::scoped_lock lock(mutex_);
  memories_.erase(key);
}

StreamRegistry::Hold StreamRegistry::hold(std::uint64_t key, std::uint64_t offset,
                                          std::size_t size) {
  Hold hold{.data = nullptr, .lock = std::unique_lock(mutex_)};
  const auto it = memories_.find(key);
  if (it == memories_.end()) return {};
  const std::span<std::byte> memory = it->second;
  if (offset > memory.size() || size > memory.size() - offset) return {};
  hold.data = memory.data() + offset;
  return hold;
}

}  // namespace leeway::transport
