#include "transport/host_socket.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "transport/random_number.h"

namespace leeway::transport {
namespace {

constexpr std::string_view kPrefix = "leeway-";
constexpr std::size_t kDigits = 16;
constexpr int kSocketFlags = SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC;
// As long as the system allows: a whole job may connect before we look.
constexpr int kBacklog = 4096;

struct Address {
  sockaddr_un name{};
  socklen_t size = 0;
};

Address address_of(const std::string& name) {
  Address address;
  address.name.sun_family = AF_UNIX;
  name.copy(address.name.sun_path + 1, sizeof address.name.sun_path - 1);  // after a zero: abstract
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

bool again(int error) noexcept {
  // ETOOMANYREFS: more descriptors are on their way than a user may have; some will arrive.
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR || error == ENOBUFS ||
         error == ETOOMANYREFS;
}

// Room for more than one descriptor, so that those nobody asked for come here and are closed.
using Control = std::array<std::byte, CMSG_SPACE(4 * sizeof(int))>;

// The first descriptor that came along; the others are closed.
FileDescriptor take_descriptors(msghdr& header) noexcept {
  FileDescriptor first;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(part) + i * sizeof number, sizeof number);
      FileDescriptor descriptor(number);
      if (!first) first = std::move(descriptor);
    }
  }
  return first;
}

}  // namespace

std::string random_host_name() { return fmt::format("{}{:016x}", kPrefix, random_number()); }

bool is_host_name(std::string_view name) noexcept {
  return name.size() == kPrefix.size() + kDigits && name.starts_with(kPrefix) &&
         name.find_first_not_of("0123456789abcdef", kPrefix.size()) == std::string_view::npos;
}

FileDescriptor listen_as(const std::string& name) {
  FileDescriptor socket(::socket(AF_UNIX, kSocketFlags, 0));
  const Address address = address_of(name);
  if (!socket ||
      bind(socket.get(), reinterpret_cast<const sockaddr*>(&address.name), address.size) != 0 ||
      listen(socket.get(), kBacklog) != 0)
    throw ConfigError(fmt::format("a socket for peers of this host: {}; raise `ulimit -n`",
                                  std::strerror(errno)));
  return socket;
}

Result<FileDescriptor> HostSocket::make() {
  FileDescriptor socket(::socket(AF_UNIX, kSocketFlags, 0));
  if (socket) return socket;
  return fail(Code::kResourceExhausted, fmt::format("a socket to a peer of this host: {}; raise "
                                                    "`ulimit -n`",
                                                    std::strerror(errno)));
}

HostSocket::HostSocket(FileDescriptor socket, int epoll, std::uint64_t tag)
    : socket_(std::move(socket)), epoll_(epoll), tag_(tag) {}

HostSocket::Io HostSocket::connect(const std::string& name) noexcept {
  const Address address = address_of(name);
  if (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address.name), address.size) != 0)
    return again(errno) ? Io::kTryAgain : Io::kGone;
  return Io::kDone;
}

bool HostSocket::trusted() const noexcept {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  return getsockopt(socket_.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0 &&
         (credentials.uid == geteuid() || credentials.uid == 0);
}

pid_t HostSocket::process() const noexcept {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  getsockopt(socket_.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size);
  return credentials.pid;
}

HostSocket::Io HostSocket::post(const HostPacket& packet, FileDescriptor attached) {
  if (waiting_.empty()) {
    const Io sent = try_send(packet, attached);
    if (sent != Io::kTryAgain) return sent;
  }
  waiting_.push_back({packet, std::move(attached)});
  return watch() ? Io::kDone : Io::kGone;
}

HostSocket::Io HostSocket::try_send(const HostPacket& packet,
                                    const FileDescriptor& attached) noexcept {
  iovec bytes{.iov_base = const_cast<HostPacket*>(&packet), .iov_len = sizeof packet};
  msghdr header{};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  if (attached) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* const part = CMSG_FIRSTHDR(&header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    const int number = attached.get();
    std::memcpy(CMSG_DATA(part), &number, sizeof number);
  }
  if (sendmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return Io::kDone;
  return again(errno) ? Io::kTryAgain : Io::kGone;
}

void HostSocket::wake() noexcept {
  // A dead peer shows when its socket is looked at.
  std::ignore = try_send({.kind = HostPacket::Kind::kWake}, {});
}

HostSocket::Io HostSocket::flush() noexcept {
  while (!waiting_.empty()) {
    const Io sent = try_send(waiting_.front().packet, waiting_.front().attached);
    if (sent != Io::kDone) return sent;
    waiting_.pop_front();
  }
  return watch() ? Io::kDone : Io::kGone;
}

HostSocket::Io HostSocket::receive(HostPacket& packet, FileDescriptor& attached) noexcept {
  attached.reset();
  if (!waiting_.empty()) return Io::kTryAgain;
  iovec bytes{.iov_base = &packet, .iov_len = sizeof packet};
  alignas(cmsghdr) Control control;
  msghdr header{};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  const ssize_t size = recvmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (size < 0) return again(errno) ? Io::kTryAgain : Io::kGone;
  attached = take_descriptors(header);
  const bool whole = size == sizeof packet && (header.msg_flags & MSG_TRUNC) == 0;
  return whole ? Io::kDone : Io::kGone;
}

bool HostSocket::watch() noexcept {
  const std::uint32_t wanted = waiting_.empty() ? EPOLLIN | EPOLLRDHUP : EPOLLOUT;
  if (wanted == watched_) return true;
  epoll_event event{};
  event.events = wanted;
  event.data.u64 = tag_;
  const int what = watched_ == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  if (epoll_ctl(epoll_, what, socket_.get(), &event) != 0) return false;
  watched_ = wanted;
  return true;
}

}  // namespace leeway::transport
