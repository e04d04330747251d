// What a server knows of one worker: its steps from the first payload to the update. Plain data of
// the consistency core, touched by its owner's thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "common/ids.h"
#include "common/monotonic.h"
#include "server/effects.h"

namespace leeway::server {

enum class WorkerPhase : std::uint8_t { kLive, kResolving, kDead, kFinished, kJoining };

// The step that the worker is pushing. At most one: a worker gets its next weights, and so its next
// gradient, only after this step has ended here.
struct OpenStep {
  enum class Payload : std::uint8_t { kAbsent, kOffered, kReading, kTaken };
  struct Offer {
    transport::RemoteRange from;
    std::uint64_t bytes = 0;
    std::optional<std::uint32_t> checksum;
  };
  Clock clock;
  std::uint64_t arrival = 0;
  TimePoint since;
  std::optional<std::uint32_t> slab;  // nothing until admitted
  std::vector<Payload> payloads;      // by local partition
  std::vector<Offer> offers;
  std::vector<float> scales;
  std::uint32_t offered = 0, reading = 0, taken = 0;
  // Its COMMIT came before the last payload; it counts when that is here (one server only).
  std::optional<transport::Commit> ending;
};

// A step that its worker committed or abandoned, until it is applied.
struct EndedStep {
  Clock clock;
  bool committed = false;             // else abandoned
  bool folded = false;                // it is in the shard's late sum, and has no slab any more
  std::optional<std::uint32_t> slab;  // committed, and the shard is not empty
  std::vector<float> scales;
  std::vector<std::byte> worker_state;
  std::uint32_t samples = 1;
  std::uint64_t based_on = 0;  // updates that the weights held on which it was computed
  float factor = 1;            // of its COMMIT
};

// A pull that waits for the gate, or for the rest of its messages.
struct PendingPull {
  Clock clock;
  std::uint32_t request = 0;
  std::uint64_t asked = 0;  // the bound that it came with
  std::uint64_t bound = 0;  // the bound that it waits by
  bool adapted = false;     // `bound` was chosen for it
  std::uint32_t total = 0;
  TimePoint since;
  std::vector<AnswerPull::Entry> entries;  // in order of arrival: what is needed first goes first
  std::vector<bool> named;                 // by local partition
  bool complete() const noexcept { return entries.size() == total; }
};

struct WorkerState {
  Incarnation incarnation;
  WorkerPhase phase = WorkerPhase::kLive;
  bool barred = false;  // a transfer failed or it broke the protocol: nothing more is taken from it
  Clock start;          // where it began in this run of the job
  Clock ended;          // steps committed or abandoned here
  Clock applied;        // of those, how many the weights hold (abandoned ones count)
  std::uint64_t in_update = 0;  // of its ended steps, how many the update that runs brings
  bool last_abandoned = false;
  float last_factor = 1;  // of the last step that it committed
  std::uint32_t last_samples = 1;
  std::optional<OpenStep> open;
  std::optional<OpenStep> initial;  // its initial values; clock 0, no slab
  std::deque<EndedStep> steps;      // ended, not applied; clocks ascend
  std::optional<PendingPull> pull;
  std::uint64_t bound = 0;                // staleness = auto: the one in force
  std::optional<std::uint32_t> answered;  // the last request that was answered
  Clock given;                            // the step that it got weights for, the last time
  std::uint64_t based_on = 0;             // updates in the weights that it gave
  std::optional<TimePoint> answered_at;   // when it got the weights for the step it computes
  Duration pace{};                        // from weights to COMMIT, recently; 0 = not known
  std::uint32_t samples = 1;              // of its last step
  std::vector<std::byte> state;           // given with the last applied step

  // What the weights hold once the update that runs is done: what a pull that is answered now gets.
  Clock upcoming() const noexcept {
    return std::min(Clock(applied.value() + in_update), std::max(applied, ended));
  }
  // Steps that will be applied here whatever comes: those in the late sum count, too.
  Clock counted() const noexcept {
    const auto folded = static_cast<std::uint64_t>(
        std::ranges::find(steps, false, &EndedStep::folded) - steps.begin());
    return Clock(applied.value() + folded);
  }
  bool live() const noexcept { return phase == WorkerPhase::kLive; }
  // Its next step may still come, or be settled: whole clocks wait for it.
  bool undecided() const noexcept {
    return phase == WorkerPhase::kLive || phase == WorkerPhase::kResolving;
  }
};

using Workers = std::map<WorkerId, WorkerState>;  // in worker order: sums depend on it

}  // namespace leeway::server
