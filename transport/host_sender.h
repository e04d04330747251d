// Our way to one peer of this host: the ring that we write and it reads, and its memories, mapped
// here as they are first asked for.
//
// Belongs to the thread of its rail. What is over goes to `finished`, which the rail hands to its
// user at the end of poll(): nothing here calls back. Once the peer is gone every ticket is
// finished with kUnavailable, nothing is mapped any more, and every later post is an error.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/file_descriptor.h"
#include "transport/host_bell.h"
#include "transport/host_mapping.h"
#include "transport/host_ring.h"
#include "transport/host_socket.h"
#include "transport/rail.h"

namespace leeway::transport {

class HostSender {
 public:
  enum class Direction { kRead, kWrite };

  // kResourceExhausted: no descriptors or memory. A peer that is not there is no error here.
  static Result<std::unique_ptr<HostSender>> make(std::string name, int epoll, std::uint64_t tag,
                                                  std::vector<FinishedTicket>& finished);

  Result<Rail::Post> send(std::span<const std::byte> message, Ticket& ticket);
  Result<Rail::Post> transfer(Direction direction, LocalPiece local, Window remote, Ticket& ticket);

  // Null while the memory is not mapped, or when that is no part of it.
  std::shared_ptr<const std::byte> map(Window from, std::size_t size);

  // False while the peer has more newcomers than it looked at, or the system more descriptors under
  // way than it allows: the rail calls connect() again.
  bool connected() const noexcept { return state_ == State::kOpen || state_ == State::kGone; }
  void connect();
  // epoll saw something. True when anything happened.
  bool look(std::uint32_t events);

  bool copying() const noexcept { return !ready_.empty(); }
  // The next kSlice bytes of the oldest transfer whose memory is mapped.
  void copy_slice();

  // Finishes every ticket with that.
  void give_up(Code code, const std::string& why);

 private:
  enum class State { kKnocking, kGreeting, kHanging, kOpen, kGone };

  // A memory of the peer.
  struct Remote {
    HostMapping mapping;
    std::size_t bytes = 0;
  };
  struct Transfer {
    Ticket* ticket;
    Direction direction;
    LocalPiece local;
    Window remote;
    std::shared_ptr<Remote> memory;  // null until the peer has answered
    std::size_t copied = 0;
  };

  HostSender(std::string name, RingWriter ring, FileDescriptor ring_descriptor, BellRope bell,
             HostSocket socket, std::vector<FinishedTicket>& finished);
  // Sends what there is to send before messages. False: not now, or it is gone.
  bool greet(const HostPacket& packet, const FileDescriptor& attached);
  void ask(std::uint64_t key);
  // Its memory is known: takes its place in the line.
  void ready(Transfer transfer);
  static Status copy(Transfer& transfer);  // the next kSlice bytes of it
  // False: the peer said what it may not say.
  bool took(const HostPacket& packet, FileDescriptor attached);
  void given(const HostPacket& packet, const FileDescriptor& attached);
  // Finishes what waits for that memory.
  void refused(std::uint64_t key, const Error& why);
  void broken(const std::string& why);
  Error gone() const;

  const std::string name_;
  State state_ = State::kKnocking;
  pid_t process_ = 0;  // once it is connected, if we can see it
  std::string why_gone_;
  std::optional<RingWriter> ring_;
  FileDescriptor ring_descriptor_;  // until the peer has been sent it
  std::optional<BellRope> bell_;
  std::optional<HostSocket> socket_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Remote>> remotes_;  // null: asked for
  std::deque<Transfer> ready_;
  std::vector<Transfer> waiting_;  // for a memory
  std::vector<FinishedTicket>& finished_;
};

}  // namespace leeway::transport
