#include "transport/stream_socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cerrno>
#include <cstring>

#include "transport/host_addresses.h"
#include "transport/wire.h"

namespace leeway::transport {
namespace {

// As long as the system allows: a whole job may connect before we look.
constexpr int kBacklog = 4096;
// Deadlines are the endpoint's business; this is for connections that nobody uses any more.
constexpr int kSilenceMs = 60'000;
constexpr int kProbeSeconds = 15;
constexpr int kProbes = 3;

void set(const FileDescriptor& socket, int level, int option, int value) noexcept {
  setsockopt(socket.get(), level, option, &value, sizeof value);
}

const sockaddr* generic(const sockaddr_storage& at) noexcept {
  return reinterpret_cast<const sockaddr*>(&at);
}

std::span<const std::byte> ip_of(const StreamAddress& address) noexcept {
  if (address.at.ss_family == AF_INET)
    return std::as_bytes(
        std::span(&reinterpret_cast<const sockaddr_in*>(&address.at)->sin_addr, 1));
  return std::as_bytes(
      std::span(&reinterpret_cast<const sockaddr_in6*>(&address.at)->sin6_addr, 1));
}

std::uint16_t port_of(const StreamAddress& address) noexcept {
  return ntohs(address.at.ss_family == AF_INET
                   ? reinterpret_cast<const sockaddr_in*>(&address.at)->sin_port
                   : reinterpret_cast<const sockaddr_in6*>(&address.at)->sin6_port);
}

void set_port(StreamAddress& address, std::uint16_t port) noexcept {
  (address.at.ss_family == AF_INET ? reinterpret_cast<sockaddr_in*>(&address.at)->sin_port
                                   : reinterpret_cast<sockaddr_in6*>(&address.at)->sin6_port) =
      htons(port);
}

// Without a port.
StreamAddress from_ip(std::span<const std::byte> ip) noexcept {
  StreamAddress address;
  if (ip.size() == sizeof(in_addr)) {
    address.at.ss_family = AF_INET;
    address.size = sizeof(sockaddr_in);
    std::memcpy(&reinterpret_cast<sockaddr_in*>(&address.at)->sin_addr, ip.data(), ip.size());
  } else {
    address.at.ss_family = AF_INET6;
    address.size = sizeof(sockaddr_in6);
    std::memcpy(&reinterpret_cast<sockaddr_in6*>(&address.at)->sin6_addr, ip.data(), ip.size());
  }
  return address;
}

}  // namespace

std::string StreamAddress::printable() const {
  const std::string ip = numeric_address(generic(at));
  return at.ss_family == AF_INET6 ? fmt::format("tcp://[{}]:{}", ip, port_of(*this))
                                  : fmt::format("tcp://{}:{}", ip, port_of(*this));
}

std::vector<std::byte> encode(const StreamAddress& address) {
  wire::Writer out(32);
  out.put(static_cast<std::uint8_t>(address.at.ss_family == AF_INET ? 4 : 6));
  out.put(port_of(address));
  out.put(address.incarnation);
  out.put(ip_of(address));
  return out.take();
}

std::optional<StreamAddress> decode_stream_address(std::span<const std::byte> bytes) {
  wire::Reader in(bytes);
  const auto version = in.get<std::uint8_t>();
  const auto port = in.get<std::uint16_t>();
  const auto incarnation = in.get<std::uint64_t>();
  if (!in.ok() || (version != 4 && version != 6) || port == 0) return std::nullopt;
  const std::size_t size = version == 4 ? sizeof(in_addr) : sizeof(in6_addr);
  if (in.left() != size) return std::nullopt;
  StreamAddress address = from_ip(in.take(size));
  set_port(address, port);
  address.incarnation = incarnation;
  return address;
}

FileDescriptor listen_at(const std::string& address, std::uint16_t port) {
  std::byte ip[sizeof(in6_addr)];
  const bool six = address.find(':') != std::string::npos;
  if (inet_pton(six ? AF_INET6 : AF_INET, address.c_str(), ip) != 1)
    throw ConfigError(fmt::format("bind address '{}' is no numeric address", address));
  StreamAddress at = from_ip(std::span(ip, six ? sizeof(in6_addr) : sizeof(in_addr)));
  set_port(at, port);
  FileDescriptor socket(
      ::socket(at.at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  // Connections of a process that was here before may still be dying.
  if (socket) set(socket, SOL_SOCKET, SO_REUSEADDR, 1);
  if (!socket || bind(socket.get(), generic(at.at), at.size) != 0 ||
      listen(socket.get(), kBacklog) != 0)
    throw ConfigError(
        fmt::format("fabric tcp: listening at {}: {}", at.printable(), std::strerror(errno)));
  return socket;
}

StreamAddress address_of(int listener) {
  StreamAddress address;
  address.size = sizeof address.at;
  if (getsockname(listener, reinterpret_cast<sockaddr*>(&address.at), &address.size) != 0)
    throw ConfigError(fmt::format("fabric tcp: getsockname: {}", std::strerror(errno)));
  return address;
}

Result<FileDescriptor> connect_to(const StreamAddress& from, const StreamAddress& to) {
  if (from.at.ss_family != to.at.ss_family)
    return fail(Code::kInvalidArgument, fmt::format("{} is not of the same version of IP as {}",
                                                    to.printable(), from.printable()));
  FileDescriptor socket(
      ::socket(to.at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!socket)
    return fail(Code::kResourceExhausted, fmt::format("a socket to {}: {}; raise `ulimit -n`",
                                                      to.printable(), std::strerror(errno)));
  prepare_stream(socket);
  // From the interface that was chosen; the port is found when the other end is known.
  set(socket, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
  StreamAddress here = from;
  set_port(here, 0);
  if (bind(socket.get(), generic(here.at), here.size) != 0 ||
      (::connect(socket.get(), generic(to.at), to.size) != 0 && errno != EINPROGRESS))
    return fail(Code::kUnavailable,
                fmt::format("connecting to {}: {}", to.printable(), std::strerror(errno)));
  return socket;
}

int connect_error(const FileDescriptor& socket) noexcept {
  int error = 0;
  socklen_t size = sizeof error;
  return getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

void prepare_stream(const FileDescriptor& socket) noexcept {
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, kSilenceMs);
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, kProbeSeconds);
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds);
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
}

}  // namespace leeway::transport
