#include "transport/stream_sender.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace leeway::transport {
namespace {

// Bytes of messages and questions; then the rail takes no more until some have gone out.
constexpr std::size_t kMaxBacklog = std::size_t{128} << 10;

}  // namespace

Result<std::unique_ptr<StreamSender>> StreamSender::make(const StreamAddress& from,
                                                         const StreamAddress& to, int epoll,
                                                         std::uint64_t tag,
                                                         std::vector<FinishedTicket>& finished) {
  auto socket = connect_to(from, to);
  if (!socket && socket.error().code != Code::kUnavailable)
    return tl::unexpected(std::move(socket).error());
  const bool there = socket.has_value();
  std::unique_ptr<StreamSender> sender(
      new StreamSender(there ? std::move(*socket) : FileDescriptor(), to, epoll, tag, finished));
  if (!there) sender->gone(socket.error().message);
  if (!sender->watch())
    return fail(Code::kResourceExhausted, fmt::format("epoll: {}", std::strerror(errno)));
  return sender;
}

StreamSender::StreamSender(FileDescriptor socket, const StreamAddress& to, int epoll,
                           std::uint64_t tag, std::vector<FinishedTicket>& finished)
    : StreamEnd(std::move(socket), epoll, tag),
      to_(to),
      name_(to.printable()),
      finished_(finished) {}

Error StreamSender::why() const {
  return {Code::kUnavailable, fmt::format("peer {}: {}", name_, why_gone_)};
}

std::uint32_t StreamSender::wanted() const noexcept {
  return state_ == State::kConnecting ? EPOLLOUT : StreamEnd::wanted();
}

// --- posting -------------------------------------------------------------------------------------

Result<Rail::Post> StreamSender::send(std::span<const std::byte> message, Ticket& ticket) {
  if (over()) return tl::unexpected(why());
  if (backlog() >= kMaxBacklog) return Rail::Post::kTryAgain;
  send_or_queue({.kind = StreamKind::kMessage, .size = static_cast<std::uint32_t>(message.size())},
                message);
  if (over()) return tl::unexpected(why());
  if (backlog() == 0)
    finished_.push_back({&ticket, {}});
  else
    messages_.push_back({&ticket, queued()});
  return Rail::Post::kTaken;
}

Result<Rail::Post> StreamSender::read(LocalPiece into, Window from, Ticket& ticket) {
  if (over()) return tl::unexpected(why());
  if (backlog() >= kMaxBacklog) return Rail::Post::kTryAgain;
  if (into.size == 0) {
    finished_.push_back({&ticket, {}});
    return Rail::Post::kTaken;
  }
  transfers_.emplace(++last_id_, Transfer{&ticket, false, into, from});
  queue({.kind = StreamKind::kRead, .words = {last_id_, from.key, from.address, into.size}});
  return Rail::Post::kTaken;
}

Result<Rail::Post> StreamSender::write(LocalPiece from, Window to, Ticket& ticket) {
  if (over()) return tl::unexpected(why());
  if (from.size == 0) {
    finished_.push_back({&ticket, {}});
    return Rail::Post::kTaken;
  }
  transfers_.emplace(++last_id_, Transfer{&ticket, true, from, to});
  writing_.push_back(last_id_);
  return Rail::Post::kTaken;
}

void StreamSender::went(std::uint64_t bytes) {
  while (!messages_.empty() && messages_.front().end <= bytes) {
    finished_.push_back({messages_.front().ticket, {}});
    messages_.pop_front();
  }
}

StreamHead StreamSender::next_chunk() {
  const std::uint64_t id = writing_.front();
  const Transfer& transfer = transfers_.at(id);
  const std::size_t left = transfer.local.size - transfer.moved;
  return {.kind = StreamKind::kWrite,
          .last = left <= kStreamChunk,
          .size = static_cast<std::uint32_t>(std::min(left, kStreamChunk)),
          .words = {id, transfer.remote.key, transfer.remote.address + transfer.moved}};
}

StreamEnd::Hold StreamSender::chunk(std::size_t) {
  const Transfer& transfer = transfers_.at(writing_.front());
  return {.data = transfer.local.data + transfer.moved, .lock = {}};
}

void StreamSender::chunk_went(std::size_t size) {
  const std::uint64_t id = writing_.front();
  Transfer& transfer = transfers_.at(id);
  transfer.moved += size;
  if (chunk_left() != 0) return;
  if (transfer.refused || transfer.moved == transfer.local.size) writing_.pop_front();
  if (transfer.refused) finish(id, tl::unexpected(refusal(transfer)));
}

// --- events --------------------------------------------------------------------------------------

void StreamSender::ready(std::uint32_t) {
  if (state_ == State::kConnecting) connected();
}

void StreamSender::connected() {
  if (const int error = connect_error(socket()); error != 0)
    return gone(error == ECONNREFUSED ? "nobody listens there"
                                      : fmt::format("not reached: {}", std::strerror(error)));
  const EncodedHead hello(
      {.kind = StreamKind::kHello, .words = {kStreamMagic, to_.incarnation, kStreamVersion}});
  const auto bytes = hello.bytes();
  // There is room in a socket that nothing was sent to.
  const ssize_t sent =
      ::send(socket().get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0 && errno == EAGAIN) return;  // not connected yet
  if (sent != static_cast<ssize_t>(bytes.size())) return gone("it closed the connection or died");
  state_ = State::kGreeting;
  if (!watch()) gone("out of memory");
}

StreamEnd::Complaint StreamSender::took_message(RailUser&, std::span<const std::byte>) {
  return "it sent a message where answers are expected";
}

StreamEnd::Complaint StreamSender::took(const StreamHead& head) {
  if (state_ == State::kOpen) return answered(head);
  if (head.kind == StreamKind::kWelcome) {
    state_ = State::kOpen;
    return std::nullopt;
  }
  if (head.kind != StreamKind::kRefused) return "it did not answer our greeting";
  switch (static_cast<StreamRefusal>(head.words[1])) {
    case StreamRefusal::kVersion:
      return "it is another version of Leeway: use one release for the whole job";
    case StreamRefusal::kIncarnation:
      return "the process that was there is gone, another one listens in its place";
    case StreamRefusal::kMemory:
      break;
  }
  return "it refused our greeting";
}

StreamEnd::Complaint StreamSender::answered(const StreamHead& head) {
  const std::uint64_t id = head.words[0];
  switch (head.kind) {
    case StreamKind::kData:
      return data(head);
    case StreamKind::kRefused:
      refused(id);
      return std::nullopt;
    case StreamKind::kWritten: {
      const auto it = transfers_.find(id);
      if (it == transfers_.end()) return std::nullopt;  // refused before
      if (!it->second.write || it->second.moved != it->second.local.size)
        return "it confirmed what was not written";
      finish(id, {});
      return std::nullopt;
    }
    default:
      return fmt::format("it sent a frame of kind {} that does not belong here",
                         static_cast<int>(head.kind));
  }
}

StreamEnd::Complaint StreamSender::data(const StreamHead& head) {
  reading_ = head.words[0];
  const auto it = transfers_.find(reading_);
  if (it == transfers_.end() || it->second.write || head.size == 0 ||
      head.size > it->second.local.size - it->second.moved)
    return "it sent bytes that nobody asked for";
  return std::nullopt;
}

StreamEnd::Hold StreamSender::room(std::size_t) {
  const Transfer& transfer = transfers_.at(reading_);
  return {.data = transfer.local.data + transfer.moved, .lock = {}};
}

void StreamSender::arrived(std::size_t size) {
  Transfer& transfer = transfers_.at(reading_);
  transfer.moved += size;
  if (transfer.moved == transfer.local.size) finish(reading_, {});
}

void StreamSender::refused(std::uint64_t id) {
  const auto it = transfers_.find(id);
  if (it == transfers_.end()) return;  // of an earlier chunk of it
  Transfer& transfer = it->second;
  if (chunk_left() != 0 && writing_.front() == id) {
    transfer.refused = true;
    return;
  }
  std::erase(writing_, id);
  finish(id, tl::unexpected(refusal(transfer)));
}

Error StreamSender::refusal(const Transfer& transfer) const {
  return {Code::kInvalidArgument,
          fmt::format("peer {} has no {} bytes at {} of a memory with key {:016x}", name_,
                      transfer.local.size, transfer.remote.address, transfer.remote.key)};
}

void StreamSender::finish(std::uint64_t id, Status status) {
  const auto it = transfers_.find(id);
  finished_.push_back({it->second.ticket, std::move(status)});
  transfers_.erase(it);
}

void StreamSender::lost(Loss, const std::string& why) { gone(why); }

void StreamSender::end_connection() noexcept {
  const bool writes =
      std::ranges::any_of(transfers_, [](const auto& open) { return open.second.write; });
  if (writes)
    break_off();
  else
    hang_up();
}

void StreamSender::give_up(Code code, const std::string& reason) {
  if (state_ == State::kGone) return;
  state_ = State::kGone;
  why_gone_ = reason;
  end_connection();
  Error error = why();
  error.code = code;
  for (const Message& message : messages_)
    finished_.push_back({message.ticket, tl::unexpected(error)});
  for (const auto& [id, transfer] : transfers_)
    finished_.push_back({transfer.ticket, tl::unexpected(error)});
  messages_.clear();
  transfers_.clear();
  writing_.clear();
}

}  // namespace leeway::transport
