// libFuzzer target: bytes of a peer over TCP that says what it likes, to both ends of a connection
// (StreamReceiver, StreamSender).
//
// The input is steps of { 1 size and end | bytes }: the highest bit says to which end, the rest how
// many bytes come in one go. "KEYKEYKE" in it stands for the key of a memory.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "transport/stream_receiver.h"
#include "transport/stream_sender.h"

namespace {

using namespace leeway::transport;

struct Nobody final : RailUser {
  void message(std::span<const std::byte> bytes) override {
    if (bytes.size() > kStreamMessage) std::abort();
  }
  void done(Ticket&, leeway::Status) override {}
};

constexpr std::uint64_t kIncarnation = 0x4e5241434e494e49;

// Nothing of it lingers in the system, where thousands of them would fill its tables.
FileDescriptor accept_one(const FileDescriptor& listener) {
  FileDescriptor accepted(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  setsockopt(accepted.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  return accepted;
}

void say(const FileDescriptor& socket, std::span<const std::byte> bytes) {
  (void)send(socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  std::array<std::byte, 65536> heard;
  while (recv(socket.get(), heard.data(), heard.size(), MSG_DONTWAIT) > 0) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const FileDescriptor listener = listen_at("127.0.0.1", 0);
  FileDescriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  static std::array<std::byte, kStreamStaging> staging;
  Nobody user;

  StreamRegistry registry;
  std::vector<std::byte> memory(4096);
  const std::uint64_t key = registry.enlist(memory);
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) return 0;
  const FileDescriptor to_receiver(pair[1]);
  StreamReceiver receiver(FileDescriptor(pair[0]), epoll.get(), 1, kIncarnation, registry);

  StreamAddress address = address_of(listener.get());
  address.incarnation = kIncarnation;
  std::vector<FinishedTicket> finished;
  auto sender = StreamSender::make(address, address, epoll.get(), 2, finished);
  if (!sender) return 0;
  const FileDescriptor to_sender = accept_one(listener);
  (*sender)->ready(EPOLLOUT);
  std::array<Ticket, 3> tickets;
  std::vector<std::byte> bytes(600'000), small(64);
  // What a peer would have to answer, by the ids 1 and 2.
  (void)(*sender)->read({nullptr, small.data(), small.size()}, {0, 5}, tickets[0]);
  (void)(*sender)->write({nullptr, bytes.data(), bytes.size()}, {4000, 6}, tickets[1]);
  (void)(*sender)->send(small, tickets[2]);

  std::vector<std::byte> input(size);
  if (size != 0) std::memcpy(input.data(), data, size);
  constexpr std::string_view kMark = "KEYKEYKE";
  const auto mark = std::as_bytes(std::span(kMark));
  for (auto at = input.begin();
       (at = std::search(at, input.end(), mark.begin(), mark.end())) != input.end();)
    std::memcpy(&*at, &key, sizeof key);

  std::span<const std::byte> rest(input);
  while (!rest.empty()) {
    const auto what = static_cast<unsigned>(rest[0]);
    const auto step = rest.subspan(1, std::min<std::size_t>(what & 127, rest.size() - 1));
    rest = rest.subspan(1 + step.size());
    const bool there = (what & 128) != 0;
    StreamEnd& end = there ? static_cast<StreamEnd&>(**sender) : receiver;
    say(there ? to_sender : to_receiver, step);
    (void)end.receive(user, staging);
    if (end.has_output()) (void)end.flush();
    finished.clear();
  }
  (*sender)->give_up(leeway::Code::kCancelled, "over");
  if (finished.size() > tickets.size()) std::abort();
  registry.drop(key);
  return 0;
}
