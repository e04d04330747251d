#include "scheduler/launcher/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>

#include "common/result.h"

namespace leeway::launcher {
namespace {

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  out.reserve(strings.size() + 1);
  for (std::string& s : strings) out.push_back(s.data());
  out.push_back(nullptr);
  return out;
}

// Between fork and exec: only calls that are safe there. The number of the error goes up the pipe.
[[noreturn]] void become(char* const* arguments, char* const* environment, int out, int err,
                         int report, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // it died before the line above
  const int null = ::open("/dev/null", O_RDONLY);
  ::dup2(null, STDIN_FILENO);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(err, STDERR_FILENO);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (int signal : {SIGPIPE, SIGINT, SIGTERM, SIGHUP, SIGCHLD}) ::signal(signal, SIG_DFL);
  ::execve(arguments[0], arguments, environment);
  const int error = errno;
  [[maybe_unused]] const auto written = ::write(report, &error, sizeof error);
  ::_exit(127);
}

}  // namespace

void Fd::reset() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

std::pair<Fd, Fd> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw ConfigError(
        fmt::format("no pipe: {} (more descriptors: ulimit -n)", std::strerror(errno)));
  return {Fd(ends[0]), Fd(ends[1])};
}

ChildProcess spawn(const ChildSpec& spec) {
  std::vector<std::string> command = spec.command;
  std::vector<std::string> variables;
  for (const auto& [name, value] : spec.environment)
    variables.push_back(fmt::format("{}={}", name, value));
  const auto arguments = pointers(command);
  const auto environment = pointers(variables);
  auto [out_read, out_write] = make_pipe();
  auto [err_read, err_write] = make_pipe();
  auto [report_read, report_write] = make_pipe();
  for (int fd : {out_read.get(), err_read.get()}) ::fcntl(fd, F_SETFL, O_NONBLOCK);

  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0)
    throw ConfigError(fmt::format("{} cannot be started: {} (more processes: ulimit -u)",
                                  command.front(), std::strerror(errno)));
  if (pid == 0)
    become(arguments.data(), environment.data(), out_write.get(), err_write.get(),
           report_write.get(), parent);
  ::setpgid(pid, pid);  // here too: whoever signals the group next must find it
  report_write.reset();
  int error = 0;
  ssize_t got = 0;
  do got = ::read(report_read.get(), &error, sizeof error);
  while (got < 0 && errno == EINTR);
  if (got == sizeof error) {
    ::waitpid(pid, nullptr, 0);
    throw ConfigError(
        fmt::format("{} cannot be executed: {}", command.front(), std::strerror(error)));
  }
  return {.pid = pid, .out = std::move(out_read), .err = std::move(err_read)};
}

std::optional<ChildNews> next_child_news() {
  siginfo_t info{};
  if (::waitid(P_ALL, 0, &info, WEXITED | WSTOPPED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
    return std::nullopt;
  const pid_t pid = info.si_pid;
  const bool stopped = info.si_code == CLD_STOPPED;
  if (!stopped && ::getpgid(pid) == pid) ::kill(-pid, SIGKILL);
  siginfo_t reaped{};
  ::waitid(P_PID, static_cast<id_t>(pid), &reaped, (stopped ? WSTOPPED : WEXITED) | WNOHANG);
  if (stopped) return ChildNews{.pid = pid, .end = std::nullopt, .stop_signal = info.si_status};
  return ChildNews{
      .pid = pid,
      .end = ProcessEnd{.by_signal = info.si_code != CLD_EXITED, .value = info.si_status},
      .stop_signal = 0};
}

std::set<pid_t> children_now() {
  std::ifstream file(fmt::format("/proc/self/task/{}/children", ::getpid()));
  std::set<pid_t> children;
  for (pid_t pid = 0; file >> pid;) children.insert(pid);
  return children;
}

void kill_adopted(const std::set<pid_t>& keep) {
  // A child of a killed child shows up here only after its parent is gone: look again until quiet.
  for (int round = 0; round < 100; ++round) {
    bool any = false;
    for (pid_t pid : children_now()) {
      if (keep.contains(pid)) continue;
      any = true;
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    if (!any) return;
  }
}

}  // namespace leeway::launcher
