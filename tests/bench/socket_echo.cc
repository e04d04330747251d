#include "tests/bench/socket_echo.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <stdexcept>

#include "common/monotonic.h"

namespace leeway::bench {

SocketEcho::SocketEcho() {
  const auto check = [](bool good) {
    if (!good) throw std::runtime_error("no TCP connection over loopback");
  };
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ours_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* raw = reinterpret_cast<sockaddr*>(&address);
  check(bind(listener, raw, length) == 0 && listen(listener, 1) == 0 &&
        getsockname(listener, raw, &length) == 0 && connect(ours_, raw, length) == 0);
  theirs_ = accept(listener, nullptr, nullptr);
  close(listener);
  const int on = 1;
  for (const int side : {ours_, theirs_})
    check(setsockopt(side, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
  echo_ = std::jthread([side = theirs_] {
    char byte = 0;
    while (recv(side, &byte, 1, 0) == 1 && send(side, &byte, 1, MSG_NOSIGNAL) == 1) {
    }
  });
}

SocketEcho::~SocketEcho() {
  shutdown(ours_, SHUT_RDWR);
  echo_.join();
  close(ours_);
  close(theirs_);
}

double SocketEcho::round_trip() {
  char byte = 1;
  const TimePoint start = MonotonicClock::now();
  if (send(ours_, &byte, 1, MSG_NOSIGNAL) != 1 || recv(ours_, &byte, 1, 0) != 1)
    throw std::runtime_error("the socket's other end is gone");
  return seconds_between(start, MonotonicClock::now());
}

}  // namespace leeway::bench
