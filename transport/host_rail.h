// The rail between processes of one host: messages through rings in shared memory, bulk bytes by
// copying between our memory and the peer's, mapped here.
//
// No locks lie in shared memory, nothing has a name in a file system, and the kernel tells at once
// when a peer dies; a peer that is stopped holds up nobody (its ring fills, its memory can still be
// read and written). The peer's whole part in a transfer is to give its memory once. Works wherever
// both see the same abstract Unix sockets (host_identity.h), without any right to trace.
//
// An idle rail costs nothing: arm() leaves a mark in each incoming ring, and who writes then rings
// the bell (host_bell.h), which makes descriptor() readable.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/acceptor.h"
#include "transport/file_descriptor.h"
#include "transport/host_receiver.h"
#include "transport/host_registry.h"
#include "transport/host_sender.h"
#include "transport/rail.h"

namespace leeway::transport {

class HostRail final : public Rail {
 public:
  HostRail();  // throws ConfigError
  ~HostRail() override;
  HostRail(const HostRail&) = delete;
  HostRail& operator=(const HostRail&) = delete;

  const RailInfo& info() const noexcept override { return info_; }
  std::string printable(std::span<const std::byte> address) const override;
  // Access::kPeers wants a descriptor.
  Result<std::unique_ptr<Registration>> enlist(const ForeignMemory& memory, Access access) override;
  Result<RailPeer> connect(std::span<const std::byte> address) override;
  void disconnect(RailPeer peer) override;
  Result<Post> send(RailPeer peer, std::span<const std::byte> message, Ticket& ticket) override;
  Result<Post> read(RailPeer peer, LocalPiece into, Window from, Ticket& ticket) override;
  Result<Post> write(RailPeer peer, LocalPiece from, Window to, Ticket& ticket) override;
  std::shared_ptr<const std::byte> map(RailPeer peer, Window from, std::size_t size) override;
  bool poll(RailUser& user) override;
  int descriptor() const noexcept override { return epoll_.get(); }
  bool arm() noexcept override;
  void disarm() noexcept override;

 private:
  bool read_messages(RailUser& user);
  bool look_at_sockets();
  bool look_at(std::uint64_t tag, std::uint32_t events);
  void accept_newcomers();
  void retire_dropped();
  bool copy_slice();
  bool finish(RailUser& user);
  Result<Post> transfer(HostSender::Direction direction, RailPeer peer, LocalPiece local,
                        Window remote, Ticket& ticket);
  void line_up(std::uint64_t id, const HostSender& sender);
  HostSender* find(std::uint64_t id) noexcept;

  RailInfo info_;
  HostRegistry registry_;
  FileDescriptor epoll_;
  std::optional<Acceptor> acceptor_;
  std::uint64_t last_id_;
  // By their numbers, which are their epoll tags too.
  std::unordered_map<std::uint64_t, std::unique_ptr<HostSender>> senders_;
  std::unordered_map<std::uint64_t, std::unique_ptr<HostReceiver>> receivers_;
  std::vector<std::uint64_t> connecting_;  // senders that have to try again
  std::deque<std::uint64_t> copying_;      // senders with bytes to copy, each once, in turn
  std::vector<FinishedTicket> finished_;   // to be told
  std::vector<FinishedTicket> telling_;
  bool look_soon_ = true;  // at the sockets
  unsigned polls_ = 0;
  std::array<std::byte, kRingMessage> message_;
};

}  // namespace leeway::transport
