#include "transport/host_receiver.h"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <utility>

#include "common/log.h"

namespace leeway::transport {
namespace {

// Of one ring, before the others have their turn.
constexpr int kMessagesAtOnce = 64;
// Of one look at a socket.
constexpr int kPacketsAtOnce = 64;

}  // namespace

HostReceiver::HostReceiver(HostSocket socket, HostRegistry& registry)
    : registry_(registry), socket_(std::move(socket)) {}

bool HostReceiver::read_messages(RailUser& user, std::span<std::byte> buffer) {
  if (!ring_) return false;
  int count = 0;
  for (; count < kMessagesAtOnce; ++count) {
    std::size_t size = 0;
    const auto got = ring_->get(buffer, size);
    if (got == RingReader::Get::kEmpty) break;
    if (got == RingReader::Get::kBroken) {
      refuse("it wrote nonsense into the ring of messages");
      return true;
    }
    user.message(buffer.first(size));
  }
  if (count == 0) return false;
  if (ring_->sender_waits() && socket_) socket_->wake();
  return true;
}

bool HostReceiver::look(std::uint32_t events) {
  if (!socket_) return false;
  bool any = false;
  Io io = (events & EPOLLOUT) != 0 ? socket_->flush() : Io::kDone;
  for (int i = 0; i < kPacketsAtOnce && io == Io::kDone; ++i) {
    HostPacket packet;
    FileDescriptor attached;
    io = socket_->receive(packet, attached);
    if (io != Io::kDone) break;
    any = true;
    if (const auto why = take(packet, std::move(attached))) {
      refuse(*why);
      return true;
    }
    if (!socket_) return true;
  }
  // A hang-up is seen by receive(), unless our own packets have to go first.
  if (io == Io::kGone || (io == Io::kTryAgain && (events & (EPOLLHUP | EPOLLERR)) != 0)) {
    socket_.reset();
    return true;
  }
  return any;
}

std::optional<std::string> HostReceiver::take(const HostPacket& packet, FileDescriptor attached) {
  if (!ring_) return greet(packet, attached);
  switch (packet.kind) {
    case HostPacket::Kind::kBell:
      return hang(std::move(attached));
    case HostPacket::Kind::kAsk:
      if (answer(packet.key) == Io::kGone) socket_.reset();
      return std::nullopt;
    default:
      return fmt::format("it sent a packet of kind {} that does not belong here",
                         static_cast<std::uint32_t>(packet.kind));
  }
}

std::optional<std::string> HostReceiver::greet(const HostPacket& packet,
                                               const FileDescriptor& attached) {
  if (packet.kind != HostPacket::Kind::kHello || packet.key != kHostMagic)
    return "it is no Leeway process";
  if (packet.number != kHostVersion || packet.size != kRingBytes)
    return "it is another version of Leeway";
  if (!attached) return "its memory did not arrive; when this goes on, raise `ulimit -n` here";
  auto ring = RingReader::open(attached.get());
  if (!ring) return ring.error().message;
  ring_.emplace(std::move(*ring));
  return std::nullopt;
}

std::optional<std::string> HostReceiver::hang(FileDescriptor attached) {
  if (bell_) return "it sent a second bell";
  if (!attached) return "its bell did not arrive; when this goes on, raise `ulimit -n` here";
  auto bell = Bell::hang(std::move(attached), socket_->epoll());
  if (!bell) return "it sent something else in place of its bell";
  bell_.emplace(std::move(*bell));
  return std::nullopt;
}

HostSocket::Io HostReceiver::answer(std::uint64_t key) {
  HostPacket packet{.kind = HostPacket::Kind::kRefuse, .key = key};
  auto memory = registry_.find(key);
  if (!memory) return socket_->post(packet);
  if (!memory->descriptor) {
    packet.number = static_cast<std::uint32_t>(HostRefusal::kNoDescriptors);
    return socket_->post(packet);
  }
  given_.insert(key);
  packet.kind = HostPacket::Kind::kGive;
  packet.size = memory->bytes;
  return socket_->post(packet, std::move(memory->descriptor));
}

void HostReceiver::retire(std::uint64_t key) {
  if (given_.erase(key) == 0 || !socket_) return;
  if (socket_->post({.kind = HostPacket::Kind::kRetire, .key = key}) == Io::kGone) socket_.reset();
}

void HostReceiver::set_asleep(bool asleep) noexcept {
  if (ring_) ring_->set_asleep(asleep);
}

bool HostReceiver::has_messages() const noexcept { return ring_ && !ring_->empty(); }

void HostReceiver::refuse(const std::string& why) {
  log::warning("fabric shm: a connection of process {} was closed: {}",
               socket_ ? socket_->process() : 0, why);
  socket_.reset();
  ring_.reset();
  bell_.reset();
}

}  // namespace leeway::transport
