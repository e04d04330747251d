// The scheduler's status as the launcher uses it: a plain copy, so that nothing here but the poller
// knows Thrift.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/monotonic.h"
#include "scheduler/launcher/member.h"

namespace leeway::launcher {

enum class Phase { kUnknown, kGathering, kPlanned, kRunning, kStopping, kDone, kFailed };

struct WorkerFigures {
  std::int64_t clock = 0, samples = 0, skipped_steps = 0;
  double loss = 0, epoch = 0;
  std::int64_t staleness_violations = 0;
  std::vector<std::int64_t> staleness_histogram;
  std::map<std::string, double> metrics;
};

struct MemberSnapshot {
  Member member;
  std::string state;  // LIVE, RESOLVING, DEAD, FINISHED
  std::string host;
  std::int64_t pid = 0;
  std::int64_t incarnation = 0;
  std::int64_t first_clock = 0;
  std::string provider, device, address;
  std::string error;  // what it said when it left with an error
  double push_bytes_per_second = 0, pull_bytes_per_second = 0;
  std::optional<WorkerFigures> worker;
};

struct CheckpointSnapshot {
  std::string id;
  std::map<int, std::int64_t> clocks;
};

struct JobSnapshot {
  TimePoint asked_at;  // what happened before this is in here
  Phase phase = Phase::kUnknown;
  std::string reason;
  double seconds_running = 0;
  double samples_per_second = 0;
  WorkerFigures replaced;  // of workers whose place another has, together; clock: steps done
  std::map<std::string, std::string> settings;
  std::vector<MemberSnapshot> servers, workers;
  std::optional<CheckpointSnapshot> last_checkpoint;
  std::vector<CheckpointSnapshot> checkpoints;  // in the first snapshot only

  const MemberSnapshot* find(const Member& member) const noexcept {
    for (const auto* list : {&servers, &workers})
      for (const MemberSnapshot& one : *list)
        if (one.member == member) return &one;
    return nullptr;
  }
};

}  // namespace leeway::launcher
