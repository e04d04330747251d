// Who gets a slab: the server's promise that memory is bounded and that every admitted step can
// end.
//
// Steps are admitted in (clock, arrival) order. Under per_clock a step of clock c waits until the
// slabs left over could serve every live worker whose step of a lower clock is still to come; with
// at least as many slabs as workers the lowest clock then always completes, and its slabs come
// back. With a quorum, steps of lower clocks than the one that is applied next may be pending, too:
// late ones, whose slabs come back when the core folds them. So a late worker that has a slab needs
// no other, and none is kept for it. Whoever is furthest behind is always admitted, on every
// server, and its gate is open, so every clock is reached by everybody in the end. Under per_push a
// worker holds one slab for the step that it pushes, besides those of steps that are being applied
// and come back by themselves, so as many slabs as workers always suffice (with twice as many, the
// next step is read while the last is applied); fewer are safe with one server only (two servers
// could each admit the other's step and wait for ever). For a worker that is about to join a slab
// is set aside as for one that is furthest behind; it joins when there is one. Not thread-safe:
// owned by the consistency core.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "server/worker_state.h"

namespace leeway::server {

// Workers that are about to join.
struct Newcomers {
  std::vector<Clock> placed;  // the first clock that each may belong to
  std::size_t waiting = 0;    // those that have none yet
};

class SlabAdmission {
 public:
  SlabAdmission(bool per_clock, std::uint32_t slabs);

  // The worker's open step asks for a slab.
  void wait(WorkerId worker, const OpenStep& step);
  void forget(WorkerId worker);
  // The next worker whose open step gets a slab, with the slab; nothing when nobody may now.
  // Steps below `late_before` are late: their slabs come back before their clocks are applied.
  std::optional<std::pair<WorkerId, std::uint32_t>> admit(const Workers& workers, Clock late_before,
                                                          const Newcomers& newcomers);
  // One worker more may begin at the smallest live clock, and every admitted step can still end.
  bool room_for_one(const Workers& workers, Clock late_before, const Newcomers& newcomers) const;

  // Somebody waits for a slab.
  bool starved() const noexcept { return !waiting_.empty(); }
  void release(std::uint32_t slab) { free_.push_back(slab); }
  // The provider may still write into it: it is never used again.
  void quarantine() { --usable_; }
  std::uint32_t usable() const noexcept { return usable_; }

 private:
  using Place = std::tuple<std::uint64_t, std::uint64_t, WorkerId>;  // clock, arrival
  bool may_admit(const Workers& workers, Clock late_before, const Newcomers& newcomers,
                 const Place& place) const;

  bool per_clock_;
  std::uint32_t usable_;
  std::vector<std::uint32_t> free_;
  std::set<Place> waiting_;
};

}  // namespace leeway::server
