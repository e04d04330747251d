// Our way to one peer: the connection that we opened, what we say over it, and our reads and writes
// of its memories.
//
// Belongs to the thread of its rail. What is over goes to `finished`, which the rail hands to its
// user at the end of poll(): nothing here calls back. Once the peer is gone every ticket is
// finished with kUnavailable, and every later post is an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/stream_end.h"
#include "transport/stream_socket.h"

namespace leeway::transport {

class StreamSender final : public StreamEnd {
 public:
  // Is connecting when it is made. kResourceExhausted: no descriptors. A peer that is not there is
  // no error here.
  static Result<std::unique_ptr<StreamSender>> make(const StreamAddress& from,
                                                    const StreamAddress& to, int epoll,
                                                    std::uint64_t tag,
                                                    std::vector<FinishedTicket>& finished);

  ~StreamSender() override { end_connection(); }

  Result<Rail::Post> send(std::span<const std::byte> message, Ticket& ticket);
  Result<Rail::Post> read(LocalPiece into, Window from, Ticket& ticket);
  Result<Rail::Post> write(LocalPiece from, Window to, Ticket& ticket);

  void ready(std::uint32_t events) override;
  // Finishes every ticket with that, and hangs up. Nothing of a write that was under way comes to
  // the peer afterwards, over what others may have written there since.
  void give_up(Code code, const std::string& why);

 private:
  enum class State { kConnecting, kGreeting, kOpen, kGone };
  struct Transfer {
    Ticket* ticket;
    bool write;
    LocalPiece local;
    Window remote;
    std::size_t moved = 0;
    bool refused = false;  // ends with the chunk that is on its way
  };
  struct Message {
    Ticket* ticket;
    std::uint64_t end;  // as queued() counts
  };

  StreamSender(FileDescriptor socket, const StreamAddress& to, int epoll, std::uint64_t tag,
               std::vector<FinishedTicket>& finished);
  bool open() const noexcept override { return state_ == State::kOpen; }
  Complaint took(const StreamHead& head) override;
  Complaint took_message(RailUser& user, std::span<const std::byte> message) override;
  Hold room(std::size_t size) override;
  void arrived(std::size_t size) override;
  bool has_chunks() const noexcept override { return !writing_.empty(); }
  StreamHead next_chunk() override;
  Hold chunk(std::size_t size) override;
  void chunk_went(std::size_t size) override;
  void went(std::uint64_t bytes) override;
  void lost(Loss loss, const std::string& why) override;
  bool may_receive() const override { return state_ != State::kConnecting; }
  std::uint32_t wanted() const noexcept override;

  void gone(const std::string& why) { give_up(Code::kUnavailable, why); }
  void end_connection() noexcept;
  void connected();
  Complaint answered(const StreamHead& head);
  Complaint data(const StreamHead& head);
  void refused(std::uint64_t id);
  void finish(std::uint64_t id, Status status);
  Error refusal(const Transfer& transfer) const;
  Error why() const;

  const StreamAddress to_;
  const std::string name_;
  State state_ = State::kConnecting;
  std::string why_gone_;
  std::uint64_t last_id_ = 0;
  std::unordered_map<std::uint64_t, Transfer> transfers_;
  std::deque<std::uint64_t> writing_;  // with bytes to send, in turn
  std::uint64_t reading_ = 0;          // whose bytes come in
  std::deque<Message> messages_;       // not gone out yet
  std::vector<FinishedTicket>& finished_;
};

}  // namespace leeway::transport
