// A process of its own with a HostRail, for tests that kill or stop peers.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <vector>

#include "tests/unit/transport/host_fixture.h"

namespace leeway::transport::testing {

inline constexpr std::size_t kHostChildMemory = std::size_t{1} << 20;

class HostChild {
 public:
  // kEcho answers each message with the same one; kSpin does and never sleeps. kFlood keeps
  // messages, reads and writes of the parent's memory going besides, as fast as it can.
  enum class Role { kEcho, kSpin, kFlood };

  // Spawns it. It connects to `parent` and knows `memory`, kHostChildMemory bytes of the parent's.
  // It has `bytes` bytes itself.
  HostChild(Role role, const HostNode& parent, Window memory, std::size_t bytes = kHostChildMemory);
  ~HostChild();
  HostChild(const HostChild&) = delete;
  HostChild& operator=(const HostChild&) = delete;

  const std::vector<std::byte>& address() const { return address_; }
  // Filled with 77.
  Window memory() const { return memory_; }
  pid_t process() const { return pid_; }

  void signal(int number) const;
  void kill();  // SIGKILL, and waits for its end

 private:
  void wait();

  pid_t pid_ = -1;
  int pipe_ = -1;
  std::vector<std::byte> address_;
  Window memory_;
};

}  // namespace leeway::transport::testing
