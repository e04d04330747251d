// The simplest rail there can be: between endpoints of one process, messages through mailboxes and
// bulk bytes by memcpy, in order and at once. What a hostile rail is built on.
//
// Contract in transport/rail.h. What all of them share is guarded by one mutex.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "transport/rail.h"

namespace leeway::conformance {

class LoopbackRail final : public transport::Rail {
 public:
  LoopbackRail();
  ~LoopbackRail() override;
  LoopbackRail(const LoopbackRail&) = delete;
  LoopbackRail& operator=(const LoopbackRail&) = delete;

  const transport::RailInfo& info() const noexcept override { return info_; }
  std::string printable(std::span<const std::byte> address) const override;
  Result<std::unique_ptr<transport::Registration>> enlist(const transport::ForeignMemory& memory,
                                                          transport::Access access) override;
  Result<transport::RailPeer> connect(std::span<const std::byte> address) override;
  void disconnect(transport::RailPeer peer) override;
  Result<Post> send(transport::RailPeer peer, std::span<const std::byte> message,
                    transport::Ticket& ticket) override;
  Result<Post> read(transport::RailPeer peer, transport::LocalPiece into, transport::Window from,
                    transport::Ticket& ticket) override;
  Result<Post> write(transport::RailPeer peer, transport::LocalPiece from, transport::Window to,
                     transport::Ticket& ticket) override;
  bool poll(transport::RailUser& user) override;
  int descriptor() const noexcept override { return -1; }
  bool arm() noexcept override { return true; }
  void disarm() noexcept override {}

 private:
  struct Copy {
    bool write = false;
    std::uint64_t rail = 0;  // of the peer
    transport::LocalPiece local;
    transport::Window remote;
    transport::Ticket* ticket = nullptr;
  };
  struct Over {
    transport::Ticket* ticket = nullptr;
    Status status;
  };
  Result<Post> begin(transport::RailPeer peer, Copy copy);
  const std::uint64_t* find(transport::RailPeer peer) const;

  transport::RailInfo info_;
  std::uint64_t id_;
  std::vector<std::uint64_t> peers_;  // by RailPeer, from 1 on; 0 = disconnected
  std::deque<Copy> copies_;
  std::deque<Over> over_;
};

}  // namespace leeway::conformance
