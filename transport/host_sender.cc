#include "transport/host_sender.h"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "transport/host_copy.h"

namespace leeway::transport {
namespace {

// At 13 GB/s a message waits 40 us for it.
constexpr std::size_t kSlice = std::size_t{512} << 10;
// Shorter ones are copied when they are posted.
constexpr std::size_t kAtOnce = std::size_t{16} << 10;
// A memory of the peer's of so many bytes is more than the caches keep until its end is copied.
constexpr std::size_t kBeyondCaches = std::size_t{16} << 20;
// Of one look at a socket.
constexpr int kPacketsAtOnce = 64;

}  // namespace

Result<std::unique_ptr<HostSender>> HostSender::make(std::string name, int epoll, std::uint64_t tag,
                                                     std::vector<FinishedTicket>& finished) {
  auto socket = HostSocket::make();
  if (!socket) return tl::unexpected(std::move(socket).error());
  FileDescriptor descriptor;
  auto ring = RingWriter::make(descriptor);
  if (!ring) return tl::unexpected(std::move(ring).error());
  auto bell = BellRope::make();
  if (!bell) return tl::unexpected(std::move(bell).error());
  std::unique_ptr<HostSender> sender(
      new HostSender(std::move(name), std::move(*ring), std::move(descriptor), std::move(*bell),
                     HostSocket(std::move(*socket), epoll, tag), finished));
  sender->connect();
  return sender;
}

HostSender::HostSender(std::string name, RingWriter ring, FileDescriptor ring_descriptor,
                       BellRope bell, HostSocket socket, std::vector<FinishedTicket>& finished)
    : name_(std::move(name)),
      ring_(std::move(ring)),
      ring_descriptor_(std::move(ring_descriptor)),
      bell_(std::move(bell)),
      socket_(std::move(socket)),
      finished_(finished) {}

void HostSender::connect() {
  using Io = HostSocket::Io;
  if (connected()) return;
  if (state_ == State::kKnocking) {
    const Io io = socket_->connect(name_);
    if (io == Io::kTryAgain) return;
    if (io == Io::kGone) return broken("nobody has that name: it has ended");
    process_ = socket_->process();
    if (!socket_->trusted()) return broken("it runs as another user");
    state_ = State::kGreeting;
  }
  if (state_ == State::kGreeting) {
    if (!greet({.kind = HostPacket::Kind::kHello,
                .number = kHostVersion,
                .key = kHostMagic,
                .size = kRingBytes},
               ring_descriptor_))
      return;
    ring_descriptor_.reset();
    state_ = State::kHanging;
  }
  if (!greet({.kind = HostPacket::Kind::kBell}, bell_->descriptor())) return;
  state_ = State::kOpen;
  if (!socket_->watch()) return broken("epoll is out of memory");
  for (const auto& [key, memory] : remotes_) ask(key);
}

bool HostSender::greet(const HostPacket& packet, const FileDescriptor& attached) {
  const HostSocket::Io io = socket_->try_send(packet, attached);
  if (io == HostSocket::Io::kGone) broken("it closed the connection");
  return io == HostSocket::Io::kDone;
}

Error HostSender::gone() const { return {Code::kUnavailable, why_gone_}; }

void HostSender::broken(const std::string& why) {
  give_up(Code::kUnavailable,
          process_ != 0
              ? fmt::format("peer {} (process {}) of this host is gone: {}", name_, process_, why)
              : fmt::format("peer {} of this host is gone: {}", name_, why));
}

void HostSender::give_up(Code code, const std::string& why) {
  state_ = State::kGone;
  why_gone_ = why;
  for (const Transfer& transfer : ready_) finished_.push_back({transfer.ticket, fail(code, why)});
  for (const Transfer& transfer : waiting_) finished_.push_back({transfer.ticket, fail(code, why)});
  ready_.clear();
  waiting_.clear();
  remotes_.clear();
  socket_.reset();
  ring_.reset();
  ring_descriptor_.reset();
  bell_.reset();
}

Result<Rail::Post> HostSender::send(std::span<const std::byte> message, Ticket& ticket) {
  if (state_ == State::kGone) return tl::unexpected(gone());
  if (message.size() > kRingMessage)
    return fail(Code::kInvalidArgument, fmt::format("a message of {} bytes to a peer of this host, "
                                                    "which takes {}",
                                                    message.size(), kRingMessage));
  if (!connected()) return Rail::Post::kTryAgain;
  switch (ring_->put(message)) {
    case RingWriter::Put::kFull:
      return Rail::Post::kTryAgain;
    case RingWriter::Put::kBroken:
      broken("it wrote nonsense into the ring of messages");
      return tl::unexpected(gone());
    case RingWriter::Put::kDone:
      break;
  }
  if (ring_->receiver_sleeps()) bell_->ring();
  finished_.push_back({&ticket, {}});
  return Rail::Post::kTaken;
}

Result<Rail::Post> HostSender::transfer(Direction direction, LocalPiece local, Window remote,
                                        Ticket& ticket) {
  if (state_ == State::kGone) return tl::unexpected(gone());
  const auto [it, first] = remotes_.try_emplace(remote.key);
  Transfer transfer{&ticket, direction, local, remote, it->second};
  if (transfer.memory != nullptr) {
    ready(std::move(transfer));
    return Rail::Post::kTaken;
  }
  waiting_.push_back(std::move(transfer));
  if (first && state_ == State::kOpen) ask(remote.key);
  return Rail::Post::kTaken;
}

std::shared_ptr<const std::byte> HostSender::map(Window from, std::size_t size) {
  const auto found = remotes_.find(from.key);
  if (found == remotes_.end() || found->second == nullptr) return nullptr;
  Remote& remote = *found->second;
  if (from.address > remote.bytes || size > remote.bytes - from.address) return nullptr;
  if (!remote.mapping.prepare(from.address, size)) return nullptr;
  return {found->second, remote.mapping.data() + from.address};
}

void HostSender::ask(std::uint64_t key) {
  // A peer that is gone shows when its socket is looked at.
  std::ignore = socket_->post({.kind = HostPacket::Kind::kAsk, .key = key});
}

void HostSender::ready(Transfer transfer) {
  const std::size_t bytes = transfer.memory->bytes;
  if (transfer.remote.address > bytes || transfer.local.size > bytes - transfer.remote.address) {
    finished_.push_back(
        {transfer.ticket,
         fail(Code::kInvalidArgument,
              fmt::format("{} bytes at {} of a memory of {} bytes of peer {} (process {})",
                          transfer.local.size, transfer.remote.address, bytes, name_, process_))});
    return;
  }
  if (transfer.local.size > kAtOnce)
    ready_.push_back(std::move(transfer));
  else
    finished_.push_back({transfer.ticket, copy(transfer)});
}

Status HostSender::copy(Transfer& transfer) {
  HostMapping& mapping = transfer.memory->mapping;
  const std::size_t offset = transfer.remote.address + transfer.copied;
  const std::size_t size = std::min(kSlice, transfer.local.size - transfer.copied);
  if (size == 0) return {};
  auto prepared = mapping.prepare(offset, size);
  if (!prepared) return prepared;
  std::byte* const here = transfer.local.data + transfer.copied;
  std::byte* const there = mapping.data() + offset;
  const bool read = transfer.direction == Direction::kRead;
  std::byte* const to = read ? here : there;
  const std::byte* const from = read ? there : here;
  if (transfer.memory->bytes >= kBeyondCaches && transfer.local.size > kAtOnce)
    copy_past_caches(to, from, size);
  else
    std::memcpy(to, from, size);
  transfer.copied += size;
  return {};
}

void HostSender::copy_slice() {
  Transfer& transfer = ready_.front();
  Status status = copy(transfer);
  if (status && transfer.copied < transfer.local.size) return;
  finished_.push_back({transfer.ticket, std::move(status)});
  ready_.pop_front();
}

bool HostSender::look(std::uint32_t events) {
  using Io = HostSocket::Io;
  if (state_ != State::kOpen) return false;
  if ((events & EPOLLOUT) != 0 && socket_->flush() == Io::kGone) {
    broken("it closed the connection or died");
    return true;
  }
  bool any = false;
  for (int i = 0; i < kPacketsAtOnce; ++i) {
    HostPacket packet;
    FileDescriptor attached;
    const Io io = socket_->receive(packet, attached);
    // A hang-up is seen by receive(), unless our own packets have to go first.
    if (io == Io::kTryAgain && (events & (EPOLLHUP | EPOLLERR)) == 0) return any;
    any = true;
    if (io != Io::kDone) {
      broken("it closed the connection or died");
      return true;
    }
    if (!took(packet, std::move(attached))) {
      broken(fmt::format("it sent a packet of kind {} that does not belong here",
                         static_cast<std::uint32_t>(packet.kind)));
      return true;
    }
  }
  return any;
}

bool HostSender::took(const HostPacket& packet, FileDescriptor attached) {
  switch (packet.kind) {
    case HostPacket::Kind::kWake:
      return true;
    case HostPacket::Kind::kRetire:
      // Transfers under way keep it until they are done.
      if (const auto it = remotes_.find(packet.key); it != remotes_.end() && it->second != nullptr)
        remotes_.erase(it);
      return true;
    case HostPacket::Kind::kGive:
    case HostPacket::Kind::kRefuse: {
      const auto it = remotes_.find(packet.key);
      if (it == remotes_.end() || it->second != nullptr) return false;  // not asked for
      if (packet.kind == HostPacket::Kind::kGive) {
        given(packet, attached);
      } else if (packet.number == static_cast<std::uint32_t>(HostRefusal::kNoDescriptors)) {
        refused(packet.key, {Code::kUnavailable,
                             fmt::format("peer {} (process {}) has no descriptors left: raise "
                                         "`ulimit -n` there",
                                         name_, process_)});
      } else {
        refused(packet.key, {Code::kInvalidArgument,
                             fmt::format("peer {} (process {}) knows no memory with key {:016x}",
                                         name_, process_, packet.key)});
      }
      return true;
    }
    case HostPacket::Kind::kHello:
    case HostPacket::Kind::kBell:
    case HostPacket::Kind::kAsk:
      break;
  }
  return false;
}

void HostSender::given(const HostPacket& packet, const FileDescriptor& attached) {
  if (!attached)
    return refused(
        packet.key,
        {Code::kUnavailable, fmt::format("a memory of peer {} (process {}) did not arrive: raise "
                                         "`ulimit -n` here",
                                         name_, process_)});
  auto mapping = HostMapping::map(attached.get(), packet.size);
  if (!mapping) return refused(packet.key, mapping.error());
  auto memory = std::make_shared<Remote>(Remote{std::move(*mapping), packet.size});
  remotes_[packet.key] = memory;
  std::vector<Transfer> waiting;
  waiting.swap(waiting_);
  for (Transfer& transfer : waiting) {
    if (transfer.remote.key != packet.key) {
      waiting_.push_back(std::move(transfer));
      continue;
    }
    transfer.memory = memory;
    ready(std::move(transfer));
  }
}

void HostSender::refused(std::uint64_t key, const Error& why) {
  remotes_.erase(key);
  std::erase_if(waiting_, [&](const Transfer& transfer) {
    if (transfer.remote.key != key) return false;
    finished_.push_back({transfer.ticket, tl::unexpected(why)});
    return true;
  });
}

}  // namespace leeway::transport
