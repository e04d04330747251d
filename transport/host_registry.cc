#include "transport/host_registry.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "transport/random_number.h"

namespace leeway::transport {

HostRegistry::HostRegistry() : news_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!news_)
    throw ConfigError(fmt::format("eventfd: {}; raise `ulimit -n`", std::strerror(errno)));
}

std::uint64_t HostRegistry::enlist(int descriptor, std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  while (true) {
    const std::uint64_t key = random_number();
    if (entries_.try_emplace(key, Entry{descriptor, bytes}).second) return key;
  }
}

void HostRegistry::drop(std::uint64_t key) {
  const std::scoped_lock lock(mutex_);
  if (entries_.erase(key) == 0) return;
  dropped_.push_back(key);
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(news_.get(), &one, sizeof one);
}

std::optional<HostRegistry::Memory> HostRegistry::find(std::uint64_t key) {
  const std::scoped_lock lock(mutex_);
  const auto it = entries_.find(key);
  if (it == entries_.end()) return std::nullopt;
  return Memory{FileDescriptor(fcntl(it->second.descriptor, F_DUPFD_CLOEXEC, 0)), it->second.bytes};
}

std::vector<std::uint64_t> HostRegistry::take_dropped() {
  const std::scoped_lock lock(mutex_);
  std::uint64_t ignored = 0;
  [[maybe_unused]] const auto n = read(news_.get(), &ignored, sizeof ignored);
  return std::exchange(dropped_, {});
}

}  // namespace leeway::transport
