// A further process of a benchmark: this program again, with other arguments and a socket to us.
//
// Each class is used from one thread. Messages are JSON objects (CBOR on the socket, 4 bytes of
// length before each); one with a field "error" is the child's last word.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "common/monotonic.h"

namespace leeway::bench {

// One end of the socket. Throws std::runtime_error when the other end is gone.
class Link {
 public:
  explicit Link(int socket) : socket_(socket) {}
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  void send(const nlohmann::json& message);
  nlohmann::json receive(milliseconds within);
  bool ready(milliseconds within);
  // False when the other end closed: the end of the talk. Waits without a limit.
  bool wait();
  // Says that nothing more comes, and waits until the other end has closed, too.
  bool finish(milliseconds within);
  int descriptor() const noexcept { return socket_; }

 private:
  void receive_all(void* data, std::size_t size, TimePoint until);
  int socket_;
};

// The socket of a process that ChildProcess started. The process dies with its parent.
int adopt_socket();

// Ends with this object: asked first, killed when it does not listen. Start all before a fabric is
// opened.
class ChildProcess {
 public:
  // `name` is for error messages. Throws ConfigError.
  ChildProcess(std::string name, std::vector<std::string> arguments);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  void send(const nlohmann::json& message);
  // Throws ConfigError with the child's own words, or says how it ended.
  nlohmann::json receive(milliseconds within = std::chrono::seconds(60));
  // It said something, or is gone: receive() would return or throw now.
  bool ready(milliseconds within);

 private:
  const std::string name_;
  pid_t pid_ = -1;
  Link link_;
};

}  // namespace leeway::bench
