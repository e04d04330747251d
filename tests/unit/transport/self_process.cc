#include "tests/unit/transport/self_process.h"

#include <spawn.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>
#include <vector>

namespace leeway::transport::testing {
namespace {

constexpr int kChildsFd = 100;

}  // namespace

SelfProcess start_self(const std::string& test_case, const std::string& variable,
                       const std::string& role) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
    throw std::runtime_error("socketpair");
  SelfProcess started{.socket = pair[0]};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pair[1], kChildsFd);
  const std::string entry = variable + "=" + std::to_string(kChildsFd) + " " + role;
  std::vector<char*> environment;
  for (char** e = environ; *e != nullptr; ++e) environment.push_back(*e);
  environment.push_back(const_cast<char*>(entry.c_str()));
  environment.push_back(nullptr);
  const std::string chosen = "--test-case=" + test_case;
  const char* arguments[] = {"self", "--no-skip", chosen.c_str(), "--minimal", nullptr};
  const int error = posix_spawn(&started.pid, "/proc/self/exe", &actions, nullptr,
                                const_cast<char**>(arguments), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  close(pair[1]);
  if (error == 0) return started;
  close(pair[0]);
  throw std::runtime_error(std::strerror(error));
}

}  // namespace leeway::transport::testing
