// libFuzzer target: packets of a process of this host that says what it likes, to both ends of a
// connection (HostReceiver, HostSender).
//
// The input is steps of { 1 what, 24 packet }: the lowest bit of `what` says to which end, the next
// two what is attached (nothing, a good ring, memory that may shrink, memory that is too short),
// unless a later one has a bell attached.
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "transport/host_memory.h"
#include "transport/host_receiver.h"
#include "transport/host_sender.h"

namespace {

using namespace leeway::transport;

struct Nobody final : RailUser {
  void message(std::span<const std::byte>) override {}
  void done(Ticket&, leeway::Status) override {}
};
struct PlainTicket final : Ticket {};

FileDescriptor memory(std::size_t size, bool sealed) {
  FileDescriptor made(memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (ftruncate(made.get(), static_cast<off_t>(size)) != 0) std::abort();
  if (sealed) (void)HostMapping::seal(made.get());
  return made;
}

void send_packet(int socket, const void* bytes, std::size_t size, int attached) {
  iovec piece{const_cast<void*>(bytes), size};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (attached >= 0) {
    message.msg_control = space;
    message.msg_controllen = sizeof space;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &attached, sizeof attached);
  }
  (void)sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const FileDescriptor attachments[] = {memory(kRingBytes, true), memory(kRingBytes, false),
                                               memory(100, true)};
  static const FileDescriptor bell(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  FileDescriptor epoll(epoll_create1(EPOLL_CLOEXEC));

  HostRegistry registry;
  auto own = HostMemory::make(4096, HostMemory::Kind::kShareable);
  if (!own) return 0;
  const std::uint64_t key = registry.enlist(own->descriptor(), 4096);
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) return 0;
  const FileDescriptor to_receiver(pair[1]);
  HostReceiver receiver(HostSocket(FileDescriptor(pair[0]), epoll.get(), 1), registry);

  const std::string name = random_host_name();
  const FileDescriptor listener = listen_as(name);
  std::vector<FinishedTicket> finished;
  auto sender = HostSender::make(name, epoll.get(), 2, finished);
  if (!sender) return 0;
  (*sender)->connect();
  const FileDescriptor to_sender(
      accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  PlainTicket tickets[2];
  std::byte bytes[64] = {};
  // What a peer would have to answer.
  (void)(*sender)->transfer(HostSender::Direction::kRead, {nullptr, bytes, sizeof bytes}, {0, key},
                            tickets[0]);
  (void)(*sender)->transfer(HostSender::Direction::kWrite, {nullptr, bytes, sizeof bytes},
                            {4000, 2}, tickets[1]);

  Nobody user;
  std::byte buffer[kRingMessage];
  for (; size >= 25; data += 25, size -= 25) {
    const int which = (data[0] >> 1) % 4;
    const int attached = (data[0] & 32) != 0 ? bell.get()
                         : which == 0        ? -1
                                             : attachments[which - 1].get();
    HostPacket packet;
    std::memcpy(&packet, data + 1, sizeof packet);
    if ((data[0] & 8) != 0) packet.key = key;
    const std::size_t length = (data[0] & 16) != 0 ? data[0] % sizeof packet : sizeof packet;
    if ((data[0] & 1) != 0) {
      if (to_sender) send_packet(to_sender.get(), &packet, length, attached);
      (void)(*sender)->look(EPOLLIN);
      for (int i = 0; i < 4 && (*sender)->copying(); ++i) (*sender)->copy_slice();
    } else {
      send_packet(to_receiver.get(), &packet, length, attached);
      (void)receiver.look(EPOLLIN);
      (void)receiver.read_messages(user, buffer);
    }
    finished.clear();
  }
  (*sender)->give_up(leeway::Code::kCancelled, "over");
  registry.drop(key);
  return 0;
}
