#include "tests/bench/child_process.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "common/result.h"

namespace leeway::bench {
namespace {

constexpr int kChildSocket = 3;
constexpr std::uint32_t kLongest = 1u << 20;
constexpr milliseconds kGrace{2000};

// False when `until` passed.
bool await_input(int socket, TimePoint until) {
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(until - MonotonicClock::now()).count();
    pollfd look{.fd = socket, .events = POLLIN, .revents = 0};
    const int ready = poll(&look, 1, static_cast<int>(std::max<std::int64_t>(left, 0)));
    if (ready >= 0 || errno != EINTR) return ready > 0;
  }
}

struct Started {
  pid_t pid;
  int socket;
};

Started start(const std::string& name, const std::vector<std::string>& arguments) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
    throw ConfigError(fmt::format("socketpair: {}", std::strerror(errno)));
  std::vector<const char*> argv{"leeway-bench"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pair[1], kChildSocket);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, "/proc/self/exe", &actions, nullptr,
                                const_cast<char**>(argv.data()), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(pair[1]);
  if (error != 0) {
    close(pair[0]);
    throw ConfigError(fmt::format("starting {}: {}", name, std::strerror(error)));
  }
  return {pid, pair[0]};
}

}  // namespace

Link::~Link() { close(socket_); }

void Link::send(const nlohmann::json& message) {
  const std::vector<std::uint8_t> body = nlohmann::json::to_cbor(message);
  const auto length = static_cast<std::uint32_t>(body.size());
  LEEWAY_CHECK(length <= kLongest);
  std::vector<std::uint8_t> frame(sizeof length + length);
  std::memcpy(frame.data(), &length, sizeof length);
  std::ranges::copy(body, frame.begin() + sizeof length);
  for (std::size_t at = 0; at < frame.size();) {
    const ssize_t n = ::send(socket_, frame.data() + at, frame.size() - at, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw std::runtime_error("it is gone");
    at += static_cast<std::size_t>(n);
  }
}

void Link::receive_all(void* data, std::size_t size, TimePoint until) {
  for (std::size_t at = 0; at < size;) {
    if (!await_input(socket_, until)) throw std::runtime_error("it does not answer");
    const ssize_t n = ::recv(socket_, static_cast<char*>(data) + at, size - at, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw std::runtime_error("it is gone");
    at += static_cast<std::size_t>(n);
  }
}

nlohmann::json Link::receive(milliseconds within) {
  const TimePoint until = MonotonicClock::now() + within;
  std::uint32_t length = 0;
  receive_all(&length, sizeof length, until);
  if (length > kLongest) throw std::runtime_error("it sent what is no message");
  std::vector<std::uint8_t> body(length);
  receive_all(body.data(), body.size(), until);
  return nlohmann::json::from_cbor(body);
}

bool Link::ready(milliseconds within) {
  return await_input(socket_, MonotonicClock::now() + within);
}

bool Link::wait() {
  while (!ready(std::chrono::hours(1))) {
  }
  char first = 0;
  return ::recv(socket_, &first, 1, MSG_PEEK) == 1;
}

bool Link::finish(milliseconds within) {
  shutdown(socket_, SHUT_WR);
  const TimePoint until = MonotonicClock::now() + within;
  char rest[256];
  while (await_input(socket_, until)) {
    const ssize_t n = ::recv(socket_, rest, sizeof rest, 0);
    if (n == 0 || (n < 0 && errno != EINTR)) return true;
  }
  return false;
}

int adopt_socket() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  return kChildSocket;
}

ChildProcess::ChildProcess(std::string name, std::vector<std::string> arguments)
    : name_(std::move(name)), link_([&] {
        const Started started = start(name_, arguments);
        pid_ = started.pid;
        return started.socket;
      }()) {}

ChildProcess::~ChildProcess() {
  if (!link_.finish(kGrace)) kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void ChildProcess::send(const nlohmann::json& message) {
  try {
    link_.send(message);
  } catch (const std::exception& error) {
    throw ConfigError(fmt::format("{}: {}", name_, error.what()));
  }
}

bool ChildProcess::ready(milliseconds within) { return link_.ready(within); }

nlohmann::json ChildProcess::receive(milliseconds within) {
  nlohmann::json message;
  try {
    message = link_.receive(within);
  } catch (const std::exception& error) {
    throw ConfigError(fmt::format("{}: {}", name_, error.what()));
  }
  if (const auto error = message.find("error"); error != message.end())
    throw ConfigError(fmt::format("{}: {}", name_, error->get<std::string>()));
  return message;
}

}  // namespace leeway::bench
