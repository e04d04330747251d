#include "transport/stream_receiver.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "common/log.h"

namespace leeway::transport {
namespace {

// Of one peer, under way. Who asks for more without taking the answers waits.
constexpr std::size_t kMaxReads = 1024;
constexpr std::size_t kMaxBacklog = std::size_t{64} << 10;

StreamHead refusal(std::uint64_t id, StreamRefusal reason) {
  return {.kind = StreamKind::kRefused, .words = {id, static_cast<std::uint64_t>(reason)}};
}

}  // namespace

StreamReceiver::StreamReceiver(FileDescriptor socket, int epoll, std::uint64_t tag,
                               std::uint64_t incarnation, StreamRegistry& registry)
    : StreamEnd(std::move(socket), epoll, tag), incarnation_(incarnation), registry_(registry) {}

// One that we do not listen to may have gone.
void StreamReceiver::ready(std::uint32_t events) {
  if (!may_receive() && (events & (EPOLLHUP | EPOLLERR)) != 0) hang_up();
}

bool StreamReceiver::may_receive() const {
  return reads_.size() < kMaxReads && backlog() < kMaxBacklog;
}

StreamEnd::Complaint StreamReceiver::took_message(RailUser& user,
                                                  std::span<const std::byte> message) {
  if (!greeted_) return "it sent a message before a greeting";
  user.message(message);
  return std::nullopt;
}

StreamEnd::Complaint StreamReceiver::took(const StreamHead& head) {
  if (!greeted_) return greet(head);
  const auto& [id, key, offset, length] = head.words;
  switch (head.kind) {
    case StreamKind::kRead:
      if (length != 0 && registry_.hold(key, offset, length).data != nullptr)
        reads_.push_back({id, key, offset, length});
      else
        refuse(id, StreamRefusal::kMemory);
      return std::nullopt;
    case StreamKind::kWrite:
      if (head.size == 0) return "it sent a write of nothing";
      write_ = {id, key, offset, head.last, false};
      write_.broken = registry_.hold(key, offset, head.size).data == nullptr;
      return std::nullopt;
    default:
      return fmt::format("it sent a frame of kind {} that does not belong here",
                         static_cast<int>(head.kind));
  }
}

StreamEnd::Complaint StreamReceiver::greet(const StreamHead& head) {
  if (head.kind != StreamKind::kHello || head.words[0] != kStreamMagic)
    return "it is no Leeway process";
  greeted_ = true;
  const auto turn_away = [&](StreamRefusal reason, std::string why) {
    refuse(0, reason);
    flush();
    return why;
  };
  if (head.words[2] != kStreamVersion)
    return turn_away(StreamRefusal::kVersion, "it is another version of Leeway");
  if (head.words[1] != incarnation_) {
    auto why = turn_away(StreamRefusal::kIncarnation,
                         "it looks for a process that was here before this one");
    greeted_ = false;  // a stranger, as many as want to know such an address
    return why;
  }
  queue({.kind = StreamKind::kWelcome});
  return std::nullopt;
}

void StreamReceiver::refuse(std::uint64_t id, StreamRefusal reason) { queue(refusal(id, reason)); }

StreamEnd::Hold StreamReceiver::room(std::size_t size) {
  if (write_.broken) return {};
  Hold hold = registry_.hold(write_.key, write_.offset, size);
  if (hold.data == nullptr) write_.broken = true;
  return hold;
}

void StreamReceiver::arrived(std::size_t size) {
  write_.offset += size;
  if (payload_left() != 0) return;
  if (write_.broken)
    refuse(write_.id, StreamRefusal::kMemory);
  else if (write_.last)
    queue({.kind = StreamKind::kWritten, .words = {write_.id}});
}

StreamHead StreamReceiver::next_chunk() {
  const Read read = reads_.front();
  const auto size = static_cast<std::uint32_t>(std::min<std::uint64_t>(read.left, kStreamChunk));
  if (registry_.hold(read.key, read.offset, size).data != nullptr)
    return {.kind = StreamKind::kData, .size = size, .words = {read.id}};
  reads_.pop_front();
  return refusal(read.id, StreamRefusal::kMemory);
}

StreamEnd::Hold StreamReceiver::chunk(std::size_t size) {
  const Read& read = reads_.front();
  Hold hold = registry_.hold(read.key, read.offset, size);
  // Gone since its head went out. A chunk that is not the last is followed by the refusal; who had
  // the last one whole would take it for the memory.
  if (hold.data == nullptr && read.left == chunk_left()) hang_up();
  return hold;
}

void StreamReceiver::chunk_went(std::size_t size) {
  Read& read = reads_.front();
  read.offset += size;
  read.left -= size;
  if (read.left == 0) reads_.pop_front();
}

void StreamReceiver::lost(Loss loss, const std::string& why) {
  // Anybody in the network may knock; they are closed without a word.
  if (greeted_ && loss == Loss::kMisbehaved)
    log::warning("fabric tcp: a connection to this process was closed: {}", why);
  hang_up();
}

}  // namespace leeway::transport
