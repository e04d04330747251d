// What an endpoint remembers of one send, read or write, of a peer, and of a receive buffer.
// Included by this folder's .cc files only; all of it belongs to the endpoint's thread.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>

#include "transport/endpoint.h"
#include "transport/fabric_handles.h"
#include "transport/region.h"
#include "transport/timer_heap.h"

namespace leeway::transport {

// The first member of whatever is posted: the provider hands its address back with the completion,
// and may use the space until then.
struct Posted {
  enum class Kind { kReceive, kSegment };
  fi_context2 context{};
  Kind kind;
};

struct ReceiveBuffer : Posted {
  std::size_t offset = 0;  // in the region of receive buffers
};

struct Operation;

// A part of a transfer no larger than what the provider takes at once.
struct Segment : Posted {
  Operation* operation = nullptr;
};

// An address in the address vector. `in_provider` counts the segments under way to it: it may be
// removed when there are none.
struct Address {
  fi_addr_t index = FI_ADDR_UNSPEC;
  std::string raw;
  std::string printable;
  std::size_t in_provider = 0;
};

struct PeerState {
  std::uint64_t id = 0;
  std::shared_ptr<Address> address;
  std::list<Operation*> waiting;  // the provider said "try again"; in order
  bool reached = false;           // the provider has taken something for it
};

// Free -> begun -> (waiting <->) in the provider -> reported -> free. An operation whose deadline
// passes is reported while the provider still has it, and is free when the provider gives it up.
struct Operation final : Timer {
  enum class Kind { kSend, kRead, kWrite };
  explicit Operation(Endpoint::Impl& impl) : owner(impl) {}
  void expire() override;

  Endpoint::Impl& owner;
  Kind kind = Kind::kSend;
  bool begun = false;
  bool reported = false;
  bool queued = false;  // in its peer's list of the waiting
  std::list<Operation*>::iterator queue_place{};
  std::uint64_t peer = 0;
  std::shared_ptr<Address> address;
  std::shared_ptr<Region> region;  // memory of this side, kept while the provider may touch it
  std::size_t offset = 0, size = 0;
  RemoteRange remote;
  std::size_t posted = 0;       // bytes given to the provider so far
  std::size_t in_provider = 0;  // segments not yet completed
  Status status;                // the first failure
  Completion done;
};

}  // namespace leeway::transport
