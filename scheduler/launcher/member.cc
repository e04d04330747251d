#include "scheduler/launcher/member.h"

#include <fmt/format.h>

#include <csignal>
#include <cstring>

namespace leeway::launcher {

std::string to_string(const Member& member) {
  switch (member.role) {
    case Role::kScheduler:
      return "scheduler";
    case Role::kServer:
      return fmt::format("server.{}", member.id);
    case Role::kWorker:
      return fmt::format("worker.{}", member.id);
  }
  return "nobody";
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal) : fmt::format("SIG{}", name);
}

std::string to_string(const ProcessEnd& end) {
  if (end.by_signal) return fmt::format("was killed by {}", signal_name(end.value));
  return fmt::format("exited with code {}", end.value);
}

bool vanished(const ProcessEnd& end) noexcept {
  return end.by_signal && (end.value == SIGKILL || end.value == SIGTERM || end.value == SIGHUP);
}

}  // namespace leeway::launcher
