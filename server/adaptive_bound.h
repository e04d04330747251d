// Which bound a worker has for now, with staleness = auto:LOW..HIGH (docs/consistency.md): Zhao et
// al. 2019, "Dynamic Stale Synchronous Parallel", with our own choice of what to predict from.
//
// A worker that comes to its bound must wait for the slowest one some time; the question is when.
// Its next waits are predicted from the recent pace P of its own and S of the slowest: after e more
// steps it would wait from now + e * P until the next of the slowest worker's commits at
// T, T + S, T + 2 S, ... The e with the shortest wait is chosen, the smallest of equals, as long as
// HIGH is not exceeded. Within LOW nothing is chosen; whoever is back within LOW has LOW again.
//
// Pure. Called by the consistency core.
#pragma once

#include <cstdint>

#include "common/knobs.h"
#include "server/worker_state.h"

namespace leeway::server {

// The bound that `puller` shall have, which is `lead` clocks before the slowest worker's steps (or
// the last whole clock) and has the bound `now_in_force`.
std::uint64_t choose_bound(const Workers& workers, WorkerId puller, std::uint64_t lead,
                           std::uint64_t now_in_force, Bound range, TimePoint now);

}  // namespace leeway::server
