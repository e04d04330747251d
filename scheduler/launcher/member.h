// Who is who among the processes of a job, and how one of them ended. Plain values.
#pragma once

#include <compare>
#include <string>

namespace leeway::launcher {

enum class Role { kScheduler, kServer, kWorker };

struct Member {
  Role role = Role::kScheduler;
  int id = 0;
  friend auto operator<=>(const Member&, const Member&) = default;
};

// "scheduler", "server.0", "worker.3".
std::string to_string(const Member& member);

struct ProcessEnd {
  bool by_signal = false;
  int value = 0;  // exit code or signal
  bool clean() const noexcept { return !by_signal && value == 0; }
  // As the summary has it: a signal is negative.
  int code() const noexcept { return by_signal ? -value : value; }
};

// "exited with code 3", "was killed by SIGSEGV".
std::string to_string(const ProcessEnd& end);
std::string signal_name(int signal);

// Killed from outside (a person, the kernel for want of memory, a machine going down) rather than
// by a fault of its own.
bool vanished(const ProcessEnd& end) noexcept;

}  // namespace leeway::launcher
