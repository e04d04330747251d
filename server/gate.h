// The staleness contract: when may a worker have weights? (ARCHITECTURE.md, "The gate".)
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/ids.h"
#include "server/worker_state.h"

namespace leeway::server {

// Pure functions of the workers' progress on this server. An update that runs counts as done:
// whoever answers a pull writes a partition after its update. `clocks_applied` is how many whole
// clocks are in then (per_clock only).
class Gate {
 public:
  // `slack` is 0; a planted off-by-one in the tests sets 1.
  explicit Gate(bool per_clock, std::uint64_t slack = 0) : per_clock_(per_clock), slack_(slack) {}

  bool open(const Workers& workers, Clock clocks_applied, WorkerId puller,
            const PendingPull& pull) const;
  // The smallest number of steps applied here of any live worker.
  static Clock slowest(const Workers& workers);
  // For people: whom the pull waits for, and on what.
  std::string blockers(const Workers& workers, Clock clocks_applied, WorkerId puller,
                       const PendingPull& pull) const;

 private:
  // How many steps of each other worker the pull asks for.
  std::uint64_t needed(const PendingPull& pull) const;
  bool per_clock_;
  std::uint64_t slack_;
};

}  // namespace leeway::server
