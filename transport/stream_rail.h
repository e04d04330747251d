// The rail over TCP: messages and bulk bytes through connections of our own, one that we open for
// each peer that we ask something of, and one that each peer opens that asks us. Reads and writes
// are served by the rail of the memory's owner, when it is polled (stream_frame.h).
//
// A peer that dies is noticed when its connection ends; one that goes silent is the deadlines'
// business. One connection is as fast as one flow and one core: rails.cc opens several rails where
// a NIC is faster.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/monotonic.h"
#include "transport/acceptor.h"
#include "transport/file_descriptor.h"
#include "transport/rail.h"
#include "transport/stream_receiver.h"
#include "transport/stream_registry.h"
#include "transport/stream_sender.h"
#include "transport/stream_socket.h"

namespace leeway::transport {

class StreamRail final : public Rail {
 public:
  struct Place {
    std::string address;     // numeric, of ours
    std::uint16_t port = 0;  // 0 = any that is free
    // What the machine's inventory says of the NIC that it is on.
    std::uint32_t megabits = 0;
    int numa_node = -1;
    bool near = true;
  };
  explicit StreamRail(const Place& place);  // throws ConfigError
  ~StreamRail() override;
  StreamRail(const StreamRail&) = delete;
  StreamRail& operator=(const StreamRail&) = delete;

  const RailInfo& info() const noexcept override { return info_; }
  std::string printable(std::span<const std::byte> address) const override;
  Result<std::unique_ptr<Registration>> enlist(const ForeignMemory& memory, Access access) override;
  Result<RailPeer> connect(std::span<const std::byte> address) override;
  void disconnect(RailPeer peer) override;
  Result<Post> send(RailPeer peer, std::span<const std::byte> message, Ticket& ticket) override;
  Result<Post> read(RailPeer peer, LocalPiece into, Window from, Ticket& ticket) override;
  Result<Post> write(RailPeer peer, LocalPiece from, Window to, Ticket& ticket) override;
  bool poll(RailUser& user) override;
  void close() noexcept override;
  int descriptor() const noexcept override { return epoll_.get(); }
  bool arm() noexcept override;
  void disarm() noexcept override { woken_ = true; }

 private:
  bool look(RailUser& user);
  bool receive(std::uint64_t id, RailUser& user);
  void accept_newcomers();
  void bound_strangers();
  bool flush();
  bool finish(RailUser& user);
  // What a post made of the sender.
  Result<Post> posted(std::uint64_t id, StreamSender& sender, Result<Post> result);
  StreamSender* find_sender(std::uint64_t id) noexcept;
  StreamEnd* find(std::uint64_t id) noexcept;
  void note_output(std::uint64_t id, const StreamEnd& end);

  RailInfo info_;
  StreamRegistry registry_;
  FileDescriptor epoll_;
  Acceptor acceptor_;
  StreamAddress address_;
  std::uint64_t last_id_;
  // By their numbers, which are their epoll tags too. A receiver goes when its connection is over;
  // a sender stays until it is disconnected, to say what became of the peer.
  std::unordered_map<std::uint64_t, std::unique_ptr<StreamSender>> senders_;
  std::unordered_map<std::uint64_t, std::unique_ptr<StreamReceiver>> receivers_;
  std::deque<std::uint64_t> strangers_;   // receivers, from the oldest that has not greeted on
  std::vector<std::uint64_t> output_;     // ends with something to send, each once
  std::uint64_t talking_ = 0;             // the end on which something came last
  std::vector<FinishedTicket> finished_;  // to be told
  std::vector<FinishedTicket> telling_;
  bool woken_ = false;  // has slept since the last poll()
  TimePoint looked_{};  // at all sockets, the last time
  std::array<std::byte, kStreamStaging> staging_;
};

}  // namespace leeway::transport
