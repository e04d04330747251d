// The memories of one rail that peers of this host may map, by their keys.
//
// enlist() and drop() from any thread, the rest from the rail's; one mutex. Lives longer than every
// Registration of its rail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "common/result.h"
#include "transport/file_descriptor.h"

namespace leeway::transport {

class HostRegistry {
 public:
  HostRegistry();  // throws ConfigError

  // `descriptor` stays the caller's and is open until drop(). The key is random: nobody finds it
  // who was not told.
  std::uint64_t enlist(int descriptor, std::size_t bytes);
  void drop(std::uint64_t key);

  struct Memory {
    FileDescriptor descriptor;  // of our own; empty when this process has none left
    std::size_t bytes = 0;
  };
  std::optional<Memory> find(std::uint64_t key);

  // Keys that were dropped since the last call. News, an eventfd, is readable while there are any.
  std::vector<std::uint64_t> take_dropped();
  int news() const noexcept { return news_.get(); }

 private:
  struct Entry {
    int descriptor;
    std::size_t bytes;
  };

  FileDescriptor news_;
  std::mutex mutex_;  // guards the rest
  std::unordered_map<std::uint64_t, Entry> entries_;
  std::vector<std::uint64_t> dropped_;
};

}  // namespace leeway::transport
