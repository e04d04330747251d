#include "transport/stream_end.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <tuple>
#include <utility>

namespace leeway::transport {
namespace {

// Of one connection, before the others have their turn.
constexpr std::size_t kTurn = std::size_t{1} << 20;

// Sent in place of memory that is gone.
constexpr std::array<std::byte, 4096> kNothing{};

bool again(int error) noexcept {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR || error == ENOBUFS;
}

ssize_t send_parts(int socket, iovec* parts, std::size_t count) noexcept {
  msghdr header{};
  header.msg_iov = parts;
  header.msg_iovlen = count;
  return sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
}

iovec part(std::span<const std::byte> bytes) noexcept {
  return {.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
}

std::string died(int error) {
  return error == 0 || error == ECONNRESET || error == EPIPE
             ? "it closed the connection or died"
             : fmt::format("the connection broke: {}", std::strerror(error));
}

}  // namespace

StreamEnd::StreamEnd(FileDescriptor socket, int epoll, std::uint64_t tag)
    : socket_(std::move(socket)), epoll_(epoll), tag_(tag) {}

std::uint32_t StreamEnd::wanted() const noexcept {
  return (may_receive() ? EPOLLIN : 0u) | (blocked_ && has_output() ? EPOLLOUT : 0u);
}

bool StreamEnd::watch() noexcept {
  if (!socket_) return true;
  const std::uint32_t events = wanted();
  if (events == watched_) return true;
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag_;
  const int what = watched_ ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
  if (epoll_ctl(epoll_, what, socket_.get(), &event) != 0) return false;
  watched_ = events;
  return true;
}

void StreamEnd::hang_up() noexcept {
  if (!socket_) return;
  shutdown(socket_.get(), SHUT_RDWR);
  drop_socket();
}

void StreamEnd::break_off() noexcept {
  if (!socket_) return;
  sockaddr nowhere{};
  nowhere.sa_family = AF_UNSPEC;
  std::ignore = ::connect(socket_.get(), &nowhere, sizeof nowhere);
  drop_socket();
}

// A child that was forked may have the socket too: closing it here is not enough to end anything.
void StreamEnd::drop_socket() noexcept {
  if (watched_) epoll_ctl(epoll_, EPOLL_CTL_DEL, socket_.get(), nullptr);
  watched_.reset();
  socket_.reset();
}

// --- in ------------------------------------------------------------------------------------------

bool StreamEnd::receive(RailUser& user, std::span<std::byte> staging) {
  std::size_t total = 0;
  while (socket_ && total < kTurn && may_receive()) {
    const std::size_t carried = incomplete_.size();
    if (carried != 0) std::memcpy(staging.data(), incomplete_.data(), carried);
    ssize_t got = 0;
    std::size_t asked = 0, direct = 0;
    {
      const Hold hold = payload_left_ != 0 ? room(payload_left_) : Hold{};
      iovec parts[2];
      std::size_t count = 0;
      if (hold.data != nullptr) {
        direct = payload_left_;
        parts[count++] = {.iov_base = hold.data, .iov_len = direct};
      }
      parts[count++] = part(staging.subspan(carried));
      asked = direct + staging.size() - carried;
      msghdr header{};
      header.msg_iov = parts;
      header.msg_iovlen = count;
      got = recvmsg(socket_.get(), &header, MSG_DONTWAIT);
    }
    if (got < 0 && again(errno)) break;
    if (got <= 0) {
      lost(Loss::kGone, died(got < 0 ? errno : 0));
      return true;
    }
    const auto size = static_cast<std::size_t>(got);
    total += size;
    direct = std::min(direct, size);
    if (direct != 0) {
      payload_left_ -= direct;
      arrived(direct);
    }
    const std::span<std::byte> staged = staging.first(carried + size - direct);
    const std::size_t used = staged.empty() ? 0 : parse(user, staged);
    if (!socket_) return true;
    incomplete_.assign(staged.begin() + static_cast<std::ptrdiff_t>(used), staged.end());
    if (size < asked) break;  // that was all
  }
  return total != 0;
}

std::size_t StreamEnd::parse(RailUser& user, std::span<std::byte> staged) {
  std::size_t at = 0;
  const auto refuse = [&](const std::string& why) {
    lost(Loss::kMisbehaved, why);
    return at;
  };
  while (at < staged.size() && socket_) {
    std::span<std::byte> rest = staged.subspan(at);
    if (payload_left_ != 0) {
      const std::size_t size = std::min(payload_left_, rest.size());
      if (const Hold hold = room(size); hold.data != nullptr)
        std::memcpy(hold.data, rest.data(), size);
      payload_left_ -= size;
      arrived(size);
      at += size;
      continue;
    }
    const DecodedHead decoded = decode_head(rest);
    if (decoded.what == DecodedHead::What::kWrong) return refuse("it sent what is no frame");
    if (decoded.what == DecodedHead::What::kShort) break;
    rest = rest.subspan(decoded.size);
    if (decoded.head.kind == StreamKind::kMessage) {
      if (rest.size() < decoded.head.size) break;
      if (const auto why = took_message(user, rest.first(decoded.head.size))) return refuse(*why);
      at += decoded.size + decoded.head.size;
      continue;
    }
    at += decoded.size;
    payload_left_ = decoded.head.size;
    if (const auto why = took(decoded.head)) return refuse(*why);
  }
  return at;
}

void StreamEnd::check() {
  if (!socket_ || !open()) return;
  std::byte next{};
  const ssize_t got = recv(socket_.get(), &next, sizeof next, MSG_PEEK | MSG_DONTWAIT);
  if (got == 0 || (got < 0 && !again(errno))) lost(Loss::kGone, died(got < 0 ? errno : 0));
}

// --- out -----------------------------------------------------------------------------------------

bool StreamEnd::has_output() const {
  return socket_ && open() &&
         (sent_ < sending_.size() || chunk_left_ != 0 || !frames_.empty() || has_chunks());
}

void StreamEnd::queue(const StreamHead& head, std::span<const std::byte> payload) {
  const EncodedHead encoded(head);
  frames_.insert(frames_.end(), encoded.bytes().begin(), encoded.bytes().end());
  frames_.insert(frames_.end(), payload.begin(), payload.end());
  queued_ += encoded.bytes().size() + payload.size();
}

void StreamEnd::send_or_queue(const StreamHead& head, std::span<const std::byte> payload) {
  if (!open() || has_output()) return queue(head, payload);
  const EncodedHead encoded(head);
  const std::span<const std::byte> first = encoded.bytes();
  iovec parts[] = {part(first), part(payload)};
  const ssize_t result = send_parts(socket_.get(), parts, std::size(parts));
  if (result < 0 && !again(errno)) return lost(Loss::kGone, died(errno));
  const std::size_t took = result < 0 ? 0 : static_cast<std::size_t>(result);
  queued_ += first.size() + payload.size();
  went_ += took;
  if (took == first.size() + payload.size()) return;
  blocked_ = true;
  const auto rest = [&](std::span<const std::byte> bytes, std::size_t gone) {
    bytes = bytes.subspan(std::min(gone, bytes.size()));
    frames_.insert(frames_.end(), bytes.begin(), bytes.end());
  };
  rest(first, took);
  rest(payload, took - std::min(took, first.size()));
}

// What goes out next: the frames that wait, then one chunk.
bool StreamEnd::plan() {
  sending_.clear();
  sent_ = 0;
  std::swap(sending_, frames_);
  if (has_chunks()) {
    const StreamHead head = next_chunk();
    const EncodedHead encoded(head);
    sending_.insert(sending_.end(), encoded.bytes().begin(), encoded.bytes().end());
    queued_ += encoded.bytes().size();
    chunk_left_ = head.size;
  }
  return !sending_.empty();
}

bool StreamEnd::flush() {
  std::size_t total = 0;
  blocked_ = false;
  while (socket_ && open() && total < kTurn) {
    if (sent_ == sending_.size() && chunk_left_ == 0 && !plan()) break;
    const std::span<const std::byte> frames = std::span(sending_).subspan(sent_);
    std::size_t bulk = chunk_left_;
    ssize_t result = 0;
    {
      Hold hold;
      iovec parts[2] = {part(frames), {}};
      if (bulk != 0) {
        hold = chunk(bulk);
        if (!socket_) return true;
        if (hold.data == nullptr) bulk = std::min(bulk, kNothing.size());
        parts[1] = part({hold.data != nullptr ? hold.data : kNothing.data(), bulk});
      }
      result = send_parts(socket_.get(), parts, std::size(parts));
    }
    if (result < 0 && !again(errno)) {
      lost(Loss::kGone, died(errno));
      return true;
    }
    const std::size_t took = result < 0 ? 0 : static_cast<std::size_t>(result);
    const std::size_t small = std::min(took, frames.size());
    total += took;
    sent_ += small;
    went_ += small;
    if (small != 0) went(went_);
    if (took > small) {
      chunk_left_ -= took - small;
      chunk_went(took - small);
    }
    if (took < frames.size() + bulk) {
      blocked_ = true;
      break;
    }
  }
  return total != 0;
}

}  // namespace leeway::transport
