// The memories of one rail that peers may read and write over its connections, by their keys.
//
// enlist() and drop() from any thread, hold() from the rail's; one mutex. Lives longer than every
// Registration of its rail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>

namespace leeway::transport {

class StreamRegistry {
 public:
  // The key is random: nobody finds it who was not told.
  std::uint64_t enlist(std::span<std::byte> memory);
  // Returns when nobody touches the memory any more.
  void drop(std::uint64_t key);

  // Bytes that may be touched while it lives: drop() waits for that.
  struct Hold {
    std::byte* data = nullptr;
    std::unique_lock<std::mutex> lock;
  };
  // Null data: there is no such memory, or not so much of it.
  Hold hold(std::uint64_t key, std::uint64_t offset, std::size_t size);

 private:
  std::mutex mutex_;  // guards the rest, and the memories against being freed in use
  std::unordered_map<std::uint64_t, std::span<std::byte>> memories_;
};

}  // namespace leeway::transport
