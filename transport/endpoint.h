// One or several rails (NICs, the memory of this host) as one way to peers, and the thread that
// owns them.
//
// Messages are small and two-sided; bulk bytes move by RMA, which only servers start. No operation
// relies on an order between two others: EFA gives none.
//
// Threads: open(), allocate() and start() are called while starting; post() from any thread; every
// method marked [owner] only on the endpoint's own thread, i.e. inside a handler, a completion, a
// timer or a posted task. Completions run on that thread, exactly once each, never from inside the
// call that started the operation. The Endpoint outlives its RegisteredMemory's last transfer; its
// destructor stops the thread, fails what is pending with kCancelled and closes the fabric objects
// in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/monotonic.h"
#include "common/result.h"

namespace leeway::transport {

class Rail;  // inside transport/
class Region;

// What one endpoint may ask of the machine.
struct EndpointOptions {
  std::string fabric = "auto";  // auto | efa | verbs | tcp | shm
  // Addresses to listen on, with commas: tcp opens a rail for each; verbs and efa take the NICs
  // that they are on, or, given only the loopback, choose by the inventory.
  std::string bind = "127.0.0.1";
  std::uint16_t port = 0;    // there; 0 = any that is free
  std::uint32_t peers = 16;  // how many it will talk to: sizes queues, FI_UNIVERSE_SIZE
  std::string thread_name = "fabric";
  // The GPU that this process computes on, by its PCI address; "auto": as LOCAL_RANK and
  // CUDA_VISIBLE_DEVICES say; empty: none. Its near NICs carry what the process moves, the others
  // only when all of those have failed.
  std::string gpu;
  // Memory of a GPU is to be registered, where NICs and provider can (EndpointInfo::Rail says).
  bool device_memory = false;
  // Longest piece of a read or write that goes to the provider at once; longer ones go in several.
  std::size_t max_transfer = std::size_t{1} << 30;
  // How long a rail that failed is left alone while there are others.
  Duration rest = std::chrono::seconds(1);
};

// What it got: one rail or several. `address` is opaque and goes to peers through the scheduler.
struct EndpointInfo {
  struct Rail {
    std::string fabric;          // the family: efa | verbs | tcp | shm
    std::string provider;        // libfabric's name or ours: "verbs;ofi_rxm"
    std::string device;          // domain or NIC name
    std::string printable;       // for people: "tcp://127.0.0.1:40123"
    std::uint32_t megabits = 0;  // per second, 0 = not known
    int numa_node = -1;          // of the NIC, -1 = not known
    bool near = true;            // to EndpointOptions::gpu
    bool device_memory = false;  // memory of a GPU can be registered, by its address or, with
    bool device_dmabuf = false;  // this too, as a dmabuf
  };
  std::vector<Rail> rails;
  std::string fabric, provider, device, printable;  // of the first
  std::vector<std::byte> address;
  std::size_t max_message = 0;  // bytes that send() takes
};

// Who may reach a memory.
enum class Access {
  kOwn,    // this endpoint's own transfers alone
  kPeers,  // and peers, reading and writing, once they are told its RemoteMemory
};

// Where byte 0 of a memory is for peers on one rail of its owner, and the key that opens it.
struct Window {
  std::uint64_t address = 0;
  std::uint64_t key = 0;
  friend bool operator==(const Window&, const Window&) noexcept = default;
};
// In place of the window of a rail that the memory is not known to. No key of a provider is that.
inline constexpr Window kNoWindow{UINT64_MAX, UINT64_MAX};
// What a peer must be told to reach a memory: a window for each rail of its owner, in their order.
using RemoteMemory = std::vector<Window>;
inline constexpr std::size_t kMaxRails = 64;

// Where memory of a GPU is.
struct DevicePlace {
  int ordinal = 0;  // the device, as CUDA numbers it
  int dmabuf = -1;  // of the memory from its first byte, the caller's; -1 = by its address
};
// Memory that somebody else made.
struct ForeignMemory {
  std::byte* data = nullptr;
  std::size_t size = 0;
  std::shared_ptr<const void> owner;  // kept while anything may touch the memory
  // Of the host: a memfd that can neither shrink nor grow, for peers of this host.
  int descriptor = -1;
  std::optional<DevicePlace> device;  // it is a GPU's
};

// Memory that this endpoint may move. Move-only; what allocate() makes is page-aligned, zeroed and
// touched. Lives until no transfer uses it; freed and deregistered by its destructor, on any
// thread.
class RegisteredMemory {
 public:
  RegisteredMemory() noexcept;
  RegisteredMemory(RegisteredMemory&&) noexcept;
  RegisteredMemory& operator=(RegisteredMemory&&) noexcept;
  ~RegisteredMemory();

  std::size_t size() const noexcept;
  // Empty for a GPU's memory, which the host cannot touch.
  std::span<std::byte> bytes() const noexcept;
  bool on_device() const noexcept;
  // Not null, but empty for Access::kOwn.
  std::shared_ptr<const RemoteMemory> remote() const noexcept;

 private:
  friend class Endpoint;
  struct Impl;
  static Result<RegisteredMemory> of(Result<std::shared_ptr<Region>> region);
  explicit RegisteredMemory(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

// A range of registered memory on this side of a transfer.
struct LocalRange {
  const RegisteredMemory* memory = nullptr;
  std::size_t offset = 0;
  std::size_t size = 0;
};

// Its counterpart at the peer.
struct RemoteRange {
  std::shared_ptr<const RemoteMemory> memory;
  std::uint64_t offset = 0;
};

using Peer = Strong<struct PeerTag, std::uint64_t>;
// On kTimedOut the provider may still touch the memory: `memory_released` says false, and the
// caller must not give that memory another content until the endpoint is closed.
struct Outcome {
  Status status;
  bool memory_released = true;
};
using Completion = std::function<void(Outcome)>;
using MessageHandler = std::function<void(std::span<const std::byte>)>;
using Task = std::function<void()>;

// How far from its limits an endpoint is; for benchmarks, logs and admin.
struct EndpointCounters {
  std::uint64_t messages_sent = 0, messages_received = 0;
  std::uint64_t bytes_read = 0, bytes_written = 0;
};

// For log lines: "leeway-tcp on lo at tcp://127.0.0.1:40123 and leeway-shm on ...".
std::string describe(const EndpointInfo& info);

class Endpoint {
 public:
  class Impl;  // inside transport/

  // Throws ConfigError when the fabric is not there (never falls back to another), the address is
  // not ours or locked memory is too small: bytes, limit and remedy in the text.
  static std::unique_ptr<Endpoint> open(const EndpointOptions& options);
  ~Endpoint();

  const EndpointInfo& info() const noexcept;

  // Any thread. kResourceExhausted names bytes, limit and remedy.
  Result<RegisteredMemory> allocate(std::size_t bytes, Access access);
  // The same with memory that is there already. A GPU's is known to the rails that take it, and to
  // none of this host's; kUnsupported when there is none.
  Result<RegisteredMemory> enlist(ForeignMemory memory, Access access);

  // Starts the thread. Each message that arrives is given to `handler` there; the span lives for
  // the call. What is in it is the peer's word: check everything.
  void start(MessageHandler handler);
  // Runs `task` on the endpoint's thread, in the order of posting. Any thread; blocks while the
  // queue is full (except on the endpoint's own thread); false once the endpoint is stopping.
  bool post(Task task);

  // Both have a rail of one fabric. Any thread; connect() may still fail.
  bool could_reach(std::span<const std::byte> address) const;
  // [owner] The same address again gives the same peer.
  Result<Peer> connect(std::span<const std::byte> address);
  // [owner] Fails everything pending to that peer with kUnavailable and forgets it.
  void disconnect(Peer peer);

  // [owner] Copies `message` (at most info().max_message bytes) before it returns.
  void send(Peer peer, std::span<const std::byte> message, TimePoint deadline,
            Completion done = nullptr);
  // [owner] One-sided. The write is complete when the bytes are in the peer's memory.
  void read(Peer peer, LocalRange into, RemoteRange from, TimePoint deadline, Completion done);
  void write(Peer peer, LocalRange from, RemoteRange to, TimePoint deadline, Completion done);
  // [owner] Those bytes as memory of this process, where a rail can map them and has done so (a
  // read brings that about): else null. They stay, whatever becomes of the peer, while the pointer
  // lives; what is in them is the peer's doing.
  std::shared_ptr<const std::byte> map(Peer peer, const RemoteRange& from, std::size_t size);
  // [owner] Runs `task` once, not before `when`.
  void at(TimePoint when, Task task);

  EndpointCounters counters() const noexcept;  // any thread

 private:
  friend std::unique_ptr<Endpoint> endpoint_over(std::vector<std::unique_ptr<Rail>> rails,
                                                 const EndpointOptions& options);
  explicit Endpoint(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace leeway::transport
