// Copying that leaves the caches alone. Plain functions, any thread.
#pragma once

#include <cstddef>

namespace leeway::transport {

// As memcpy. For many megabytes of which nothing is read again soon: lines are not fetched before
// they are overwritten, a third of what a copy else moves through memory.
void copy_past_caches(std::byte* to, const std::byte* from, std::size_t size) noexcept;

}  // namespace leeway::transport
