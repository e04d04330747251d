// A blocking TCP socket to a thread that echoes each byte: what the machine's scheduler and
// loopback take for a message and its answer when both sides sleep. Used from one thread; throws
// std::runtime_error.
#pragma once

#include <thread>

namespace leeway::bench {

class SocketEcho {
 public:
  SocketEcho();
  ~SocketEcho();
  SocketEcho(const SocketEcho&) = delete;
  SocketEcho& operator=(const SocketEcho&) = delete;

  double round_trip();  // seconds

 private:
  int ours_ = -1, theirs_ = -1;
  std::jthread echo_;
};

}  // namespace leeway::bench
