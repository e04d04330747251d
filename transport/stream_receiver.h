// A peer that connected to us: its messages, and its reads and writes of our memories, which are
// served here. Nothing that it says can harm more than this connection.
//
// Belongs to the thread of its rail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>

#include "transport/stream_end.h"

namespace leeway::transport {

class StreamReceiver final : public StreamEnd {
 public:
  // `incarnation`: ours.
  StreamReceiver(FileDescriptor socket, int epoll, std::uint64_t tag, std::uint64_t incarnation,
                 StreamRegistry& registry);

  bool greeted() const noexcept { return greeted_; }
  void ready(std::uint32_t events) override;

 private:
  struct Read {
    std::uint64_t id, key, offset, left;
  };
  struct Write {
    std::uint64_t id = 0, key = 0, offset = 0;
    bool last = false;
    bool broken = false;  // the memory went in the middle of it
  };

  bool open() const noexcept override { return greeted_; }
  Complaint took(const StreamHead& head) override;
  Complaint took_message(RailUser& user, std::span<const std::byte> message) override;
  Hold room(std::size_t size) override;
  void arrived(std::size_t size) override;
  bool may_receive() const override;
  bool has_chunks() const noexcept override { return !reads_.empty(); }
  StreamHead next_chunk() override;
  Hold chunk(std::size_t size) override;
  void chunk_went(std::size_t size) override;
  void lost(Loss loss, const std::string& why) override;

  Complaint greet(const StreamHead& head);
  void refuse(std::uint64_t id, StreamRefusal reason);

  const std::uint64_t incarnation_;
  StreamRegistry& registry_;
  bool greeted_ = false;
  std::deque<Read> reads_;  // with bytes to send, in turn
  Write write_;             // whose bytes come in
};

}  // namespace leeway::transport
