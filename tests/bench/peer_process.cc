#include "tests/bench/peer_process.h"

#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "tests/bench/raw_fabric.h"

namespace leeway::bench {
namespace {

constexpr char kSpin = 's', kRest = 'r';

void put(int socket, const void* data, std::size_t size) {
  if (::send(socket, data, size, MSG_NOSIGNAL) != static_cast<ssize_t>(size))
    throw ConfigError("the benchmark's other process is gone");
}

void get(int socket, void* data, std::size_t size) {
  if (size != 0 && ::recv(socket, data, size, MSG_WAITALL) != static_cast<ssize_t>(size))
    throw ConfigError("the benchmark's other process is gone");
}

void put(int socket, const Reachable& side) {
  const std::uint64_t size = side.address.size();
  put(socket, &size, sizeof size);
  put(socket, side.address.data(), side.address.size());
  put(socket, &side.memory, sizeof side.memory);
}

Reachable get_reachable(int socket) {
  Reachable side;
  std::uint64_t size = 0;
  get(socket, &size, sizeof size);
  side.address.resize(size);
  get(socket, side.address.data(), side.address.size());
  get(socket, &side.memory, sizeof side.memory);
  return side;
}

}  // namespace

PeerProcess::PeerProcess(const std::string& fabric, std::size_t bytes) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
    throw ConfigError(fmt::format("socketpair: {}", std::strerror(errno)));
  socket_ = pair[0];
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addclose(&actions, pair[0]);
  const std::string socket = std::to_string(pair[1]), size = std::to_string(bytes);
  const char* arguments[] = {"leeway-bench", "peer",    "--socket",   socket.c_str(), "--fabric",
                             fabric.c_str(), "--bytes", size.c_str(), nullptr};
  const int error = posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr,
                                const_cast<char**>(arguments), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(pair[1]);
  if (error != 0) {
    close(socket_);
    throw ConfigError(fmt::format("starting the other process: {}", std::strerror(error)));
  }
  endpoint_ = get_reachable(socket_);
  raw_ = get_reachable(socket_);
}

PeerProcess::~PeerProcess() {
  close(socket_);
  waitpid(pid_, nullptr, 0);
}

void PeerProcess::spin_raw(bool on) {
  const char command = on ? kSpin : kRest;
  put(socket_, &command, 1);
  char echo = 0;
  get(socket_, &echo, 1);
}

void serve_as_peer(int socket, const std::string& fabric, std::size_t bytes) {
  const auto endpoint = transport::Endpoint::open({.fabric = fabric});
  const auto memory = value_or_throw(endpoint->allocate(bytes));
  endpoint->start([](std::span<const std::byte>) {});
  RawFabric raw(fabric, bytes);
  put(socket, Reachable{endpoint->info().address, {memory.remote_address(), memory.remote_key()}});
  put(socket, Reachable{raw.address(), raw.memory()});
  constexpr int kProgressPerLook = 256;
  bool spin = false;
  while (true) {
    for (int i = 0; spin && i < kProgressPerLook; ++i) raw.progress();
    pollfd look{.fd = socket, .events = POLLIN, .revents = 0};
    if (poll(&look, 1, spin ? 0 : -1) <= 0) continue;
    char command = 0;
    if (::read(socket, &command, 1) != 1) return;
    spin = command == kSpin;
    put(socket, &command, 1);
  }
}

}  // namespace leeway::bench
