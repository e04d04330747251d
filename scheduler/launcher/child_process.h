// One child: its own process group, its output through two pipes, and it dies with leeway-run.
//
// Called from the main thread only: PR_SET_PDEATHSIG speaks of the thread that forked.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/launcher/member.h"

namespace leeway::launcher {

// A file descriptor that closes itself.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) noexcept : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() { reset(); }
  void reset() noexcept;
  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Both ends close on exec.
std::pair<Fd, Fd> make_pipe();

struct ChildSpec {
  std::vector<std::string> command;  // [0] is a path
  std::map<std::string, std::string> environment;
};

struct ChildProcess {
  pid_t pid = -1;  // also its group
  Fd out, err;     // read ends, non-blocking
};

// Throws ConfigError when the program cannot be executed.
ChildProcess spawn(const ChildSpec& spec);

// What happened to a child since the last call.
struct ChildNews {
  pid_t pid = -1;
  std::optional<ProcessEnd> end;  // nothing: it was stopped
  int stop_signal = 0;
};
// Reaps, without waiting. A child's group is killed before the child is reaped, so that its number
// cannot belong to somebody else yet: nothing that it started stays behind.
std::optional<ChildNews> next_child_news();

// Processes whose parent we are now.
std::set<pid_t> children_now();
// Kills what lost its parent and was handed to us (we are their subreaper), except `keep`.
void kill_adopted(const std::set<pid_t>& keep);

}  // namespace leeway::launcher
