// One end of a connection of a StreamRail: frames in both directions over a non-blocking socket.
// Bulk bytes go between the socket and the memory that they are for, nothing is copied on the way
// but what comes in one go with a head.
//
// Belongs to the thread of its rail, whose epoll instance watches the socket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/file_descriptor.h"
#include "transport/rail.h"
#include "transport/stream_frame.h"
#include "transport/stream_registry.h"

namespace leeway::transport {

// Takes every head with a message; one buffer serves all connections of a rail.
inline constexpr std::size_t kStreamStaging = std::size_t{16} << 10;

class StreamEnd {
 public:
  // An empty socket: it is over already.
  StreamEnd(FileDescriptor socket, int epoll, std::uint64_t tag);
  virtual ~StreamEnd() { hang_up(); }
  StreamEnd(const StreamEnd&) = delete;
  StreamEnd& operator=(const StreamEnd&) = delete;

  // epoll saw something.
  virtual void ready(std::uint32_t events) = 0;
  // Takes what has come, a good deal at most. True when anything happened. `staging` is
  // kStreamStaging bytes.
  bool receive(RailUser& user, std::span<std::byte> staging);
  // Sees whether the peer has gone, without taking anything.
  void check();
  // What waits to go out, a good deal at most. True when anything went.
  bool flush();
  // Something waits that flush() may send.
  bool has_output() const;
  // The socket takes no more just now.
  bool blocked() const noexcept { return blocked_; }
  // Has epoll look at what this end waits for; false when that is out of memory.
  bool watch() noexcept;
  bool over() const noexcept { return !socket_; }

 protected:
  using Hold = StreamRegistry::Hold;
  // Why the peer may not say that; nothing when it may.
  using Complaint = std::optional<std::string>;

  // Nothing but a hello passes before both ends know each other.
  virtual bool open() const noexcept = 0;
  // A frame; its payload comes by room() and arrived().
  virtual Complaint took(const StreamHead& head) = 0;
  virtual Complaint took_message(RailUser& user, std::span<const std::byte> message) = 0;
  // For the next `size` bytes of the payload; null: they are thrown away.
  virtual Hold room(std::size_t size) = 0;
  virtual void arrived(std::size_t size) = 0;
  // False: what was received before has to be answered first.
  virtual bool may_receive() const { return true; }

  // The next chunk that wants to go out, if there is one; or a frame without a payload that says
  // why there is none.
  virtual bool has_chunks() const noexcept = 0;
  virtual StreamHead next_chunk() = 0;
  // The next `size` bytes of it; null: they are gone, and something else is sent in their place,
  // unless this has hung up.
  virtual Hold chunk(std::size_t size) = 0;
  virtual void chunk_went(std::size_t size) = 0;
  // So many bytes of frames other than chunks have gone out since the beginning, as queued()
  // counts.
  virtual void went(std::uint64_t) {}

  // The connection is over, before anybody asked for that.
  enum class Loss { kGone, kMisbehaved };
  virtual void lost(Loss loss, const std::string& why) = 0;

  const FileDescriptor& socket() const noexcept { return socket_; }
  // What was said still goes out.
  void hang_up() noexcept;
  // What the kernel has not sent yet never goes out.
  void break_off() noexcept;
  // Behind what waits already.
  void queue(const StreamHead& head, std::span<const std::byte> payload = {});
  // At once, if nothing waits; what the socket does not take is queued.
  void send_or_queue(const StreamHead& head, std::span<const std::byte> payload);
  std::uint64_t queued() const noexcept { return queued_; }
  std::size_t backlog() const noexcept { return frames_.size(); }
  std::size_t payload_left() const noexcept { return payload_left_; }
  std::size_t chunk_left() const noexcept { return chunk_left_; }
  virtual std::uint32_t wanted() const noexcept;  // epoll events

 private:
  void drop_socket() noexcept;
  bool plan();
  // Of the staged bytes, what is whole; how many that was.
  std::size_t parse(RailUser& user, std::span<std::byte> staged);

  FileDescriptor socket_;
  const int epoll_;
  const std::uint64_t tag_;
  std::optional<std::uint32_t> watched_;

  std::size_t payload_left_ = 0;       // of the frame that is coming in
  std::vector<std::byte> incomplete_;  // the beginning of a frame that has not come whole

  std::vector<std::byte> frames_;   // that go out next
  std::vector<std::byte> sending_;  // that go out now, then the chunk
  std::size_t sent_ = 0;            // of these
  std::size_t chunk_left_ = 0;
  std::uint64_t queued_ = 0, went_ = 0;
  bool blocked_ = false;
};

}  // namespace leeway::transport
