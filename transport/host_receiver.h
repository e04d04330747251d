// A peer of this host that connected to us: the ring that it writes and we read, and its questions
// for our memories. Nothing that it says can harm more than this connection.
//
// Belongs to the thread of its rail.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>

#include "transport/file_descriptor.h"
#include "transport/host_bell.h"
#include "transport/host_registry.h"
#include "transport/host_ring.h"
#include "transport/host_socket.h"
#include "transport/rail.h"

namespace leeway::transport {

class HostReceiver {
 public:
  HostReceiver(HostSocket socket, HostRegistry& registry);

  // Gives the messages of the ring to `user`, a good many at most. True when there were any.
  bool read_messages(RailUser& user, std::span<std::byte> buffer);
  // epoll saw something. True when anything happened.
  bool look(std::uint32_t events);
  // A memory of ours is known no more.
  void retire(std::uint64_t key);

  void set_asleep(bool asleep) noexcept;
  bool has_messages() const noexcept;
  // Its peer is gone and every message that it left was read.
  bool over() const noexcept { return !socket_ && !has_messages(); }

 private:
  using Io = HostSocket::Io;
  // Why the peer may not say that; nothing when it may.
  std::optional<std::string> take(const HostPacket& packet, FileDescriptor attached);
  std::optional<std::string> greet(const HostPacket& packet, const FileDescriptor& attached);
  std::optional<std::string> hang(FileDescriptor attached);
  Io answer(std::uint64_t key);
  void refuse(const std::string& why);

  HostRegistry& registry_;
  std::optional<HostSocket> socket_;  // until the peer is gone
  std::optional<RingReader> ring_;    // since it greeted
  std::optional<Bell> bell_;          // wakes us when there is something in the ring
  std::unordered_set<std::uint64_t> given_;
};

}  // namespace leeway::transport
