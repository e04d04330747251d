// One way to reach peers: a libfabric endpoint on one NIC (fabric_rail.h), TCP (stream_rail.h), or
// the shared memory of this host (host_rail.h). An Endpoint has one or several and hides them;
// whoever adds another kind implements this.
//
// enlist() from any thread, everything else from the thread that owns the endpoint. A rail has no
// thread and no deadlines of its own: it moves when it is polled, and the endpoint decides how long
// to wait. Each ticket that was taken comes back through RailUser::done() exactly once, from inside
// poll(), or is given up by close(), after which nothing touches a byte of any memory. A
// rail lives until its last Registration is gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/result.h"
#include "transport/endpoint.h"

namespace leeway::transport {

struct ProviderTraits;

// A peer as this rail numbers it.
using RailPeer = Strong<struct RailPeerTag, std::uint64_t>;

struct RailInfo {
  const ProviderTraits* traits = nullptr;
  std::string provider;   // libfabric's own name, or ours: "verbs;ofi_rxm", "leeway-shm"
  std::string device;     // domain or NIC
  std::string printable;  // its address, for people
  std::vector<std::byte> address;
  std::size_t max_message = 0;   // bytes that send() takes
  std::size_t max_transfer = 0;  // bytes that one read() or write() takes
  std::uint32_t megabits = 0;    // per second; 0 = not known. What several rails share work by.
  int numa_node = -1;            // of the NIC; -1 = not known
  // To the GPU that this process computes on, or there is none. Others are used when all of the
  // near ones have failed.
  bool near = true;
  bool device_memory = false;  // as in EndpointInfo::Rail
  bool device_dmabuf = false;
};

// Memory made known to one rail. Freed before the memory is.
class Registration {
 public:
  virtual ~Registration() = default;
  // Where byte 0 is for a peer, and with which key. Meaningless for Access::kOwn.
  virtual Window window() const noexcept = 0;
};

// What comes back when something that was posted is over.
struct Ticket {};
// One that a rail has to tell its user of.
struct FinishedTicket {
  Ticket* ticket;
  Status status;
};

// The bytes of this side of a transfer.
struct LocalPiece {
  const Registration* registration = nullptr;  // with the rail that is asked
  std::byte* data = nullptr;
  std::size_t size = 0;
};

// Told by poll(); may call the rail's other methods from inside, but not poll().
class RailUser {
 public:
  // The bytes live for the call. They are the peer's word.
  virtual void message(std::span<const std::byte> bytes) = 0;
  virtual void done(Ticket& ticket, Status status) = 0;

 protected:
  ~RailUser() = default;
};

class Rail {
 public:
  enum class Post {
    kTaken,
    kTryAgain,  // nothing happened; poll() and ask again
  };

  virtual ~Rail() = default;

  virtual const RailInfo& info() const noexcept = 0;
  // A peer's address for people; it need not be one.
  virtual std::string printable(std::span<const std::byte> address) const = 0;

  // A GPU's memory where info().device_memory says so.
  virtual Result<std::unique_ptr<Registration>> enlist(const ForeignMemory& memory,
                                                       Access access) = 0;

  // Never blocks; a peer that is not there shows when something is posted. The same address again
  // is another RailPeer: what was said of an older one does not hold for it.
  virtual Result<RailPeer> connect(std::span<const std::byte> address) = 0;
  // Its tickets that are under way still come back.
  virtual void disconnect(RailPeer peer) = 0;

  // An error means that the ticket was not taken. send() copies the message before it returns; it
  // is done when the peer, or the provider on its behalf, has it.
  virtual Result<Post> send(RailPeer peer, std::span<const std::byte> message, Ticket& ticket) = 0;
  virtual Result<Post> read(RailPeer peer, LocalPiece into, Window from, Ticket& ticket) = 0;
  // Done when the bytes are in the peer's memory.
  virtual Result<Post> write(RailPeer peer, LocalPiece from, Window to, Ticket& ticket) = 0;

  // The peer's bytes as memory of this process, which stay mapped, whatever becomes of the peer,
  // while the pointer lives; null where a rail cannot do that, or not yet (a read brings it about).
  virtual std::shared_ptr<const std::byte> map(RailPeer, Window, std::size_t) { return nullptr; }

  // Moves what can be moved and tells `user`. True when anything happened.
  virtual bool poll(RailUser& user) = 0;

  // Called last, after which nothing moves any more; what is left to do is to free registrations
  // and the rail. By default there is nothing to stop: a rail moves when it is polled.
  virtual void close() noexcept {}

  // For sleeping in poll(2): readable when the rail has something, once arm() said true. -1: there
  // is none, and the endpoint looks again and again.
  virtual int descriptor() const noexcept = 0;
  // False: there is something already, do not sleep.
  virtual bool arm() noexcept = 0;
  virtual void disarm() noexcept = 0;
};

}  // namespace leeway::transport
