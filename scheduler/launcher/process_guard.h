// Ends the job's process groups when leeway-run itself is killed by a signal that nobody can catch.
//
// PR_SET_PDEATHSIG takes the direct children along, but not what these started (a worker inside a
// shell script). A small process holds the other end of a pipe, knows the groups, and kills those
// that are left when the pipe closes.
// Made before any thread is; called from the main thread.
#pragma once

#include <sys/types.h>

#include "scheduler/launcher/child_process.h"

namespace leeway::launcher {

class ProcessGuard {
 public:
  ProcessGuard();
  ~ProcessGuard();
  ProcessGuard(const ProcessGuard&) = delete;
  ProcessGuard& operator=(const ProcessGuard&) = delete;

  void watch(pid_t group) noexcept;
  void forget(pid_t group) noexcept;

 private:
  void send(pid_t number) noexcept;
  Fd pipe_;
  pid_t pid_ = -1;
};

}  // namespace leeway::launcher
