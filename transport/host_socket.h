// Unix sockets between the processes of one host: packets of one size, some with a descriptor.
//
// Listening is by a random name in the abstract namespace: it is gone with its process, leaves no
// file, and anybody in the network namespace may connect; so both sides ask the kernel who the
// other is. A HostSocket belongs to the thread of its rail and is watched by its epoll instance.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>

#include "common/result.h"
#include "transport/file_descriptor.h"

namespace leeway::transport {

// A packet: native byte order, 24 bytes.
//
//   kind    from      number          key             size              descriptor
//   kHello  sender    kHostVersion    kHostMagic      kRingBytes        its ring
//   kBell   sender                                                      its bell (host_bell.h)
//   kAsk    sender                    of a memory
//   kGive   receiver                  of a memory     bytes of it       the memory
//   kRefuse receiver  HostRefusal     of a memory
//   kRetire receiver                  of a memory: it is known no more
//   kWake   receiver: there is room in the ring
//
// "Sender" is who connected and puts messages into the ring.
struct HostPacket {
  enum class Kind : std::uint32_t { kHello = 1, kAsk, kGive, kRefuse, kRetire, kWake, kBell };

  Kind kind{};
  std::uint32_t number = 0;
  std::uint64_t key = 0;
  std::uint64_t size = 0;
};
static_assert(sizeof(HostPacket) == 24);

enum class HostRefusal : std::uint32_t { kUnknown, kNoDescriptors };

inline constexpr std::uint64_t kHostMagic = 0x6c65657761790a01;
inline constexpr std::uint32_t kHostVersion = 2;

// "leeway-" and 16 hexadecimal digits.
std::string random_host_name();
bool is_host_name(std::string_view name) noexcept;

// Throws ConfigError.
FileDescriptor listen_as(const std::string& name);

class HostSocket {
 public:
  enum class Io {
    kDone,
    kTryAgain,
    kGone,  // the other side closed, died or was never there
  };

  // A socket for connect().
  static Result<FileDescriptor> make();

  // `tag` is what epoll gives back.
  HostSocket(FileDescriptor socket, int epoll, std::uint64_t tag);

  // May be tried again and again; after kDone, watch().
  Io connect(const std::string& name) noexcept;
  // Has epoll look at it; false when that is out of memory.
  bool watch() noexcept;
  // Of the other side: true when it is our user or root.
  bool trusted() const noexcept;
  pid_t process() const noexcept;
  int epoll() const noexcept { return epoll_; }

  // Sends it now, or, with what comes after it, when there is room. `attached` may be empty.
  Io post(const HostPacket& packet, FileDescriptor attached = {});
  // Sends it now or not at all.
  Io try_send(const HostPacket& packet, const FileDescriptor& attached) noexcept;
  // Wakes the other side. A full queue is one that it has not looked at, so it is awake.
  void wake() noexcept;
  // What waits, as far as there is room. While anything waits, receive() gives nothing: who does
  // not read our answers gets no more of them.
  Io flush() noexcept;

  // kGone also for a packet that is none.
  Io receive(HostPacket& packet, FileDescriptor& attached) noexcept;

 private:
  struct Waiting {
    HostPacket packet;
    FileDescriptor attached;
  };

  FileDescriptor socket_;
  int epoll_;
  std::uint64_t tag_;
  std::uint32_t watched_ = 0;  // epoll events
  std::deque<Waiting> waiting_;
};

}  // namespace leeway::transport
