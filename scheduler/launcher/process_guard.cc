#include "scheduler/launcher/process_guard.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <set>

#include "common/result.h"

namespace leeway::launcher {
namespace {

// A message is one group's number, 4 bytes, native order: positive to watch, negative to forget.
[[noreturn]] void stand_guard(int pipe) {
  ::setpgid(0, 0);  // a Ctrl-C at the terminal is not for us
  ::prctl(PR_SET_NAME, "leeway-guard");
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, SIG_IGN);
  // Whoever reads leeway-run's output must see its end, so no descriptor of it stays open here.
  for (int fd = 0; fd < 1024; ++fd)
    if (fd != pipe) ::close(fd);
  std::set<pid_t> groups;
  pid_t number = 0;
  while (true) {
    const ssize_t got = ::read(pipe, &number, sizeof number);
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof number) break;
    if (number > 0) groups.insert(number);
    if (number < 0) groups.erase(-number);
  }
  for (pid_t group : groups) ::kill(-group, SIGKILL);
  ::_exit(0);
}

}  // namespace

ProcessGuard::ProcessGuard() {
  auto [read_end, write_end] = make_pipe();
  pid_ = ::fork();
  if (pid_ < 0)
    throw ConfigError(
        fmt::format("no process can be started: {} (ulimit -u)", std::strerror(errno)));
  if (pid_ == 0) stand_guard(read_end.get());
  pipe_ = std::move(write_end);
}

ProcessGuard::~ProcessGuard() {
  pipe_.reset();
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void ProcessGuard::watch(pid_t group) noexcept { send(group); }
void ProcessGuard::forget(pid_t group) noexcept { send(-group); }

void ProcessGuard::send(pid_t number) noexcept {
  [[maybe_unused]] const auto written = ::write(pipe_.get(), &number, sizeof number);
}

}  // namespace leeway::launcher
