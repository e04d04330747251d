// A ring of messages in memory that two processes share: one writes, one reads, nobody locks. What
// the other side put there is its word: each index is read once and checked, and a wrong one ends
// the connection, never the process.
//
// Layout (native byte order: it never leaves the host):
//
//   0     tail, u64             bytes ever put in; written by the sender
//   64    head, u64             bytes ever taken out; written by the receiver
//   128   receiver_asleep, u32  1: wake it after writing; set by the receiver, cleared by either
//   192   sender_waits, u32     1: wake it after making room; set by the sender, cleared by either
//   4096  kRingRoom bytes of records, each at a multiple of 8:
//         size, u64; the message; up to 7 bytes of nothing
//
// A record may run over the end and go on at the start. A stamp in one of the flags and a look at
// the other side's index are both sequentially consistent, as are their counterparts over there: so
// either the one sees that the other sleeps, or the other sees what came.
//
// Each object belongs to the thread of its rail.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/result.h"
#include "transport/file_descriptor.h"
#include "transport/host_mapping.h"

namespace leeway::transport {

inline constexpr std::size_t kRingRoom = std::size_t{256} << 10;
inline constexpr std::size_t kRingRecords = 4096;  // where they begin
inline constexpr std::size_t kRingBytes = kRingRecords + kRingRoom;
inline constexpr std::size_t kRingMessage = 8192;  // the longest

struct RingHeader {
  alignas(64) std::atomic<std::uint64_t> tail;
  alignas(64) std::atomic<std::uint64_t> head;
  alignas(64) std::atomic<std::uint32_t> receiver_asleep;
  alignas(64) std::atomic<std::uint32_t> sender_waits;
};
static_assert(sizeof(RingHeader) <= kRingRecords);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

class RingWriter {
 public:
  enum class Put { kDone, kFull, kBroken };

  // A new ring and the descriptor that the receiver is to get.
  static Result<RingWriter> make(FileDescriptor& descriptor);

  // At most kRingMessage bytes. After kFull the receiver wakes us when it has made room.
  Put put(std::span<const std::byte> message) noexcept;
  // True when the receiver sleeps and nobody has woken it yet; the caller does.
  bool receiver_sleeps() noexcept;

 private:
  explicit RingWriter(HostMapping mapping) noexcept;
  bool has_room(std::size_t bytes, std::memory_order order) noexcept;
  void copy_in(std::uint64_t position, std::span<const std::byte> bytes) noexcept;

  HostMapping mapping_;
  RingHeader* header_;
  std::uint64_t tail_ = 0;
  std::uint64_t head_ = 0;  // as last seen
  bool broken_ = false;
};

class RingReader {
 public:
  enum class Get { kMessage, kEmpty, kBroken };

  // Checks and maps what a sender gave.
  static Result<RingReader> open(int descriptor);

  // Copies the next message into `buffer` (kRingMessage bytes), where the sender cannot change it
  // any more, and sets `size`.
  Get get(std::span<std::byte> buffer, std::size_t& size) noexcept;
  bool empty() const noexcept;
  // After some get(): true when the sender waits for the room that they made; the caller wakes it.
  bool sender_waits() noexcept;
  void set_asleep(bool asleep) noexcept;

 private:
  explicit RingReader(HostMapping mapping) noexcept;
  void copy_out(std::uint64_t position, std::span<std::byte> bytes) const noexcept;

  HostMapping mapping_;
  RingHeader* header_;
  std::uint64_t head_ = 0;
  std::uint64_t tail_ = 0;  // as last seen and checked
};

}  // namespace leeway::transport
