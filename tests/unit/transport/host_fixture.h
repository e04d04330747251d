// Rails between processes of one host for tests: a rail with what it was told, memory that peers
// may reach, and waiting with a deadline.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/monotonic.h"
#include "transport/host_memory.h"
#include "transport/host_rail.h"

namespace leeway::transport::testing {

inline constexpr auto kHostPatience = std::chrono::seconds(20);

class HostNode final : public RailUser {
 public:
  HostNode() : rail(std::make_unique<HostRail>()) {}

  void message(std::span<const std::byte> bytes) override;
  void done(Ticket& ticket, Status status) override;

  RailPeer connect(const HostNode& other) { return connect(other.rail->info().address); }
  RailPeer connect(std::span<const std::byte> address);
  bool poll() { return rail->poll(*this); }

  // A ticket of its own; how it ended is in outcome(). The post has to be taken.
  using Number = std::size_t;
  Number send(RailPeer peer, std::string_view text);
  Number read(RailPeer peer, std::span<std::byte> into, Window from);
  Number write(RailPeer peer, std::span<std::byte> from, Window to);
  bool is_done(Number ticket) const { return tickets_[ticket].times > 0; }
  std::size_t done_count() const;
  // Of a ticket that is done.
  const Status& outcome(Number ticket) const { return tickets_[ticket].status; }
  bool each_at_most_once() const;
  Ticket& new_ticket();

  std::unique_ptr<HostRail> rail;
  std::vector<std::string> messages;

 private:
  struct Posted {
    Ticket ticket;  // first: done() finds the rest by it
    Status status;
    int times = 0;
  };
  Number taken(Result<Rail::Post> posted);

  std::deque<Posted> tickets_;
};

// Memory of a node that peers may reach.
struct HostShared {
  HostShared(HostNode& node, std::size_t bytes);
  std::span<std::byte> bytes() const { return memory.bytes(); }
  Window window(std::size_t offset = 0) const;

  HostMemory memory;
  std::unique_ptr<Registration> registration;
};

// Polls the nodes in turn until that holds; false after kHostPatience.
template <typename Condition, typename... Nodes>
bool until(Condition condition, Nodes&... nodes) {
  const TimePoint end = MonotonicClock::now() + kHostPatience;
  while (!condition()) {
    if (MonotonicClock::now() > end) return false;
    if (!(... | nodes.poll())) sched_yield();
  }
  return true;
}

// Waits until the rail's descriptor is readable, or so long.
bool readable(const HostNode& node, std::chrono::milliseconds longest = kHostPatience);

// Polls until there is nothing left to do, and arms the rail.
void settle(HostNode& node);

void fill(std::span<std::byte> bytes, std::uint64_t seed);
bool filled(std::span<const std::byte> bytes, std::uint64_t seed);
std::size_t open_descriptors();
std::size_t shared_mappings();  // memory files mapped into this process

}  // namespace leeway::transport::testing
