// When is a clock applied? (per_clock; docs/consistency.md, "A quorum".)
//
// Without a quorum: when every worker whose step may still come has ended it. With one: when so
// many have, and the grace time since then has passed or nobody is missing any more. What comes
// later is part of the next clock.
//
// grace_ms = auto. A worker that waits at the gate could compute instead, so waiting costs its
// samples per second; a step that misses its clock is applied one clock late, which makes it worth
// half (as the learning rate over 1 + staleness has it). So for each missing worker that can be
// expected, by its recent pace, before
//
//   budget = samples of its step / 2 / sum over workers at the gate of (samples of a step / pace)
//
// is over, the clock waits for as long as its budget, and no longer than the worker's whole pace.
//
// At a checkpoint's cut, when other servers may have applied what waits here, a clock is applied as
// soon as all that the cut wants of it is here, and passed over when that is nothing. When
// everybody who still trains is behind the clock (those in front have finished or died), the clock
// falls back to them: else nobody's steps would be applied until they had caught up.
//
// Not thread-safe: owned by the consistency core.
#pragma once

#include <cstdint>
#include <optional>

#include "common/knobs.h"
#include "server/checkpoint_hold.h"
#include "server/worker_state.h"

namespace leeway::server {

class ClockRule {
 public:
  // `quorum` 0: everybody.
  ClockRule(std::uint32_t quorum, Grace grace) : quorum_(quorum), grace_(grace) {}

  struct Decision {
    enum class What : std::uint8_t { kWait, kApply, kMove } what = What::kWait;
    std::optional<TimePoint> wake;  // kWait: decide again then
    Clock clock;                    // kMove: decide about this one instead
  };
  // May `clock` be applied now?
  Decision decide(const Workers& workers, const CheckpointHold& hold, Clock clock, TimePoint now);

  bool with_quorum() const noexcept { return quorum_ != 0; }

 private:
  struct Count;
  TimePoint deadline(const Workers& workers, Clock clock) const;
  Duration adaptive_grace(const Workers& workers, Clock clock) const;

  std::uint32_t quorum_;
  Grace grace_;
  std::optional<TimePoint> reached_;  // when the quorum of the clock was
};

}  // namespace leeway::server
