#include "transport/host_ring.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace leeway::transport {
namespace {

constexpr std::size_t kPrefix = sizeof(std::uint64_t);

constexpr std::size_t record_bytes(std::size_t message) { return kPrefix + (message + 7) / 8 * 8; }

}  // namespace

Result<RingWriter> RingWriter::make(FileDescriptor& descriptor) {
  descriptor.reset(memfd_create("leeway-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!descriptor || ftruncate(descriptor.get(), kRingBytes) != 0)
    return fail(
        Code::kResourceExhausted,
        fmt::format("{} bytes for messages to a peer of this host: {}; raise `ulimit -n` or "
                    "the memory limit",
                    kRingBytes, std::strerror(errno)));
  auto sealed = HostMapping::seal(descriptor.get());
  if (!sealed) return tl::unexpected(std::move(sealed).error());
  auto mapping = HostMapping::map(descriptor.get(), kRingBytes);
  if (!mapping) return tl::unexpected(std::move(mapping).error());
  auto prepared = mapping->prepare(0, kRingBytes);
  if (!prepared) return tl::unexpected(std::move(prepared).error());
  return RingWriter(std::move(*mapping));
}

RingWriter::RingWriter(HostMapping mapping) noexcept
    : mapping_(std::move(mapping)), header_(reinterpret_cast<RingHeader*>(mapping_.data())) {}

bool RingWriter::has_room(std::size_t bytes, std::memory_order order) noexcept {
  const std::uint64_t head = header_->head.load(order);
  broken_ = head - head_ > tail_ - head_;  // it only grows, and not beyond what is there
  if (broken_) return false;
  head_ = head;
  return kRingRoom - (tail_ - head_) >= bytes;
}

RingWriter::Put RingWriter::put(std::span<const std::byte> message) noexcept {
  const std::size_t bytes = record_bytes(message.size());
  if (kRingRoom - (tail_ - head_) < bytes && !has_room(bytes, std::memory_order_acquire)) {
    header_->sender_waits.store(1, std::memory_order_seq_cst);
    if (!has_room(bytes, std::memory_order_seq_cst)) return broken_ ? Put::kBroken : Put::kFull;
    header_->sender_waits.store(0, std::memory_order_relaxed);
  }
  const std::uint64_t size = message.size();
  copy_in(tail_, std::as_bytes(std::span(&size, 1)));
  copy_in(tail_ + kPrefix, message);
  tail_ += bytes;
  header_->tail.store(tail_, std::memory_order_seq_cst);
  return Put::kDone;
}

bool RingWriter::receiver_sleeps() noexcept {
  if (header_->receiver_asleep.load(std::memory_order_seq_cst) == 0) return false;
  return header_->receiver_asleep.exchange(0, std::memory_order_seq_cst) != 0;
}

void RingWriter::copy_in(std::uint64_t position, std::span<const std::byte> bytes) noexcept {
  std::byte* const records = mapping_.data() + kRingRecords;
  const std::size_t at = position % kRingRoom;
  const std::size_t first = std::min(bytes.size(), kRingRoom - at);
  std::copy_n(bytes.data(), first, records + at);
  std::copy_n(bytes.data() + first, bytes.size() - first, records);
}

Result<RingReader> RingReader::open(int descriptor) {
  auto mapping = HostMapping::map(descriptor, kRingBytes);
  if (!mapping) return tl::unexpected(std::move(mapping).error());
  auto prepared = mapping->prepare(0, kRingBytes);
  if (!prepared) return tl::unexpected(std::move(prepared).error());
  return RingReader(std::move(*mapping));
}

RingReader::RingReader(HostMapping mapping) noexcept
    : mapping_(std::move(mapping)), header_(reinterpret_cast<RingHeader*>(mapping_.data())) {}

RingReader::Get RingReader::get(std::span<std::byte> buffer, std::size_t& size) noexcept {
  if (head_ == tail_) {
    const std::uint64_t tail = header_->tail.load(std::memory_order_acquire);
    if (tail == head_) return Get::kEmpty;
    if (tail - head_ > kRingRoom || tail % 8 != 0) return Get::kBroken;
    tail_ = tail;
  }
  // Once: it may change under us.
  const std::uint64_t said =
      std::atomic_ref(
          *reinterpret_cast<std::uint64_t*>(mapping_.data() + kRingRecords + head_ % kRingRoom))
          .load(std::memory_order_relaxed);
  if (said > kRingMessage || record_bytes(said) > tail_ - head_) return Get::kBroken;
  size = said;
  copy_out(head_ + kPrefix, buffer.first(size));
  head_ += record_bytes(size);
  header_->head.store(head_, std::memory_order_release);
  return Get::kMessage;
}

bool RingReader::empty() const noexcept {
  return header_->tail.load(std::memory_order_seq_cst) == head_;
}

bool RingReader::sender_waits() noexcept {
  header_->head.store(head_, std::memory_order_seq_cst);
  if (header_->sender_waits.load(std::memory_order_seq_cst) == 0) return false;
  return header_->sender_waits.exchange(0, std::memory_order_seq_cst) != 0;
}

void RingReader::set_asleep(bool asleep) noexcept {
  header_->receiver_asleep.store(asleep ? 1 : 0,
                                 asleep ? std::memory_order_seq_cst : std::memory_order_relaxed);
}

void RingReader::copy_out(std::uint64_t position, std::span<std::byte> bytes) const noexcept {
  const std::byte* const records = mapping_.data() + kRingRecords;
  const std::size_t at = position % kRingRoom;
  const std::size_t first = std::min(bytes.size(), kRingRoom - at);
  std::copy_n(records + at, first, bytes.data());
  std::copy_n(records, bytes.size() - first, bytes.data() + first);
}

}  // namespace leeway::transport
