// What an endpoint remembers of a peer, of one send, read or write, and of each thing that it has
// given to a rail. Included by this folder's .cc files only; all of it belongs to the endpoint's
// thread.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/endpoint.h"
#include "transport/rail.h"
#include "transport/region.h"
#include "transport/timer_heap.h"

namespace leeway::transport {

struct Operation;

// A rail of ours with the rail of a peer at the other end.
struct Link {
  std::size_t rail = 0;    // of ours
  std::size_t window = 0;  // of the peer's memories
  int preference = 0;      // links of the lowest are used while one of them lives
  double megabits = 1;     // of the slower end
  std::vector<std::byte> address;
  RailPeer peer;  // when connected
  bool connected = false;
  std::uint32_t connections = 0;  // tried so far
  TimePoint failed_until{};       // not used before, unless there is no other
  bool out = false;               // it has failed, and nothing has ended well on it since
  std::size_t under_way = 0;      // bytes
  TimePoint heard{};              // when something on it last ended well
};

struct PeerState {
  std::uint64_t id = 0;  // ours: Peer
  std::string address;
  std::string printable;
  std::vector<Link> links;
  std::list<Operation*> waiting;  // no rail takes more just now; in order
};

// A part of a transfer no larger than what a rail takes at once.
struct Piece {
  std::size_t offset = 0, size = 0;  // in the operation
};

// Something that a rail has: a message, or bytes on their way.
struct Posted : Ticket {
  std::uint64_t peer = 0;
  std::size_t rail = 0;
  Operation* operation = nullptr;
  Piece piece;
  std::uint32_t connection = 0;  // Link::connections when it was posted
  bool given_up = false;         // another posted does its work now
};

// Free -> begun -> (waiting <->) with the rails -> reported -> free. An operation whose deadline
// passes is reported while a rail still has it, and is free when the rail gives it up.
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
  std::span<const std::byte> message;  // the sender's, or what is kept of it
  std::vector<std::byte> kept;
  std::shared_ptr<Region> region;  // memory of this side, kept while a rail may touch it
  std::size_t offset = 0, size = 0;
  RemoteRange remote;
  std::size_t posted = 0;      // bytes given to rails so far, from the front
  bool sent = false;           // something was given to a rail; of a message, all
  std::vector<Piece> again;    // given to a rail that failed
  std::size_t with_rails = 0;  // Posteds not yet come back
  std::size_t working = 0;     // of these, not given up
  struct Failure {
    std::size_t rail = 0;
    std::uint32_t connection = 0;
    friend bool operator==(const Failure&, const Failure&) = default;
  };
  std::vector<Failure> failures;  // connections that were lost, each once
  TimePoint began{}, deadline{};
  Status status;  // the first failure that counts
  Completion done;
};

}  // namespace leeway::transport
