// Which endpoints can reach each other by HostRail: those of one boot of one kernel, one network
// namespace (its sockets are found there), one user namespace and one user. Any thread.
#pragma once

#include <cstdint>

namespace leeway::transport {

// A hash of the above; 0 when the kernel does not tell (no /proc).
std::uint64_t host_identity();

// `mine` and `theirs` as host_identity() said them.
constexpr bool same_host(std::uint64_t mine, std::uint64_t theirs) noexcept {
  return mine != 0 && mine == theirs;
}

}  // namespace leeway::transport
