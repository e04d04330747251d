// What a run came to, for programs: `--summary FILE` (DESIGN, "What a user types"). Counts are of
// this run of leeway-run, over all its starts of the job: steps done twice after a restart are in
// `steps`, and how many these were is in `repeated_steps`. Plain values, called from main.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/launcher/snapshot.h"

namespace leeway::launcher {

struct Summary {
  bool ok = false;
  std::string reason;                     // of the first failure
  std::map<std::string, int> exit_codes;  // a signal is negative
  std::int64_t steps = 0;                 // committed, all workers together
  std::int64_t samples = 0;
  double seconds = 0;  // of training
  std::int64_t skipped_steps = 0;
  int restarts = 0;
  std::int64_t repeated_steps = 0;
  std::string staleness_bound = "0";  // a number or "inf"
  std::int64_t staleness_violations = 0;
  std::vector<std::int64_t> staleness_histogram;
  std::string last_checkpoint;  // "" = none
  std::map<std::string, double> metrics;

  double samples_per_second() const noexcept {
    return seconds > 0 ? static_cast<double>(samples) / seconds : 0;
  }
  std::int64_t max_staleness() const noexcept;

  // Adds what one start of the job did: it began at `restored` and came to `last`.
  void add(const std::optional<CheckpointSnapshot>& restored, const JobSnapshot& last,
           double seconds);
};

// The checkpoint that `resume` (auto, never, an id) means, as the first status of a start has them.
std::optional<CheckpointSnapshot> restored_checkpoint(const std::string& resume,
                                                      const JobSnapshot& first);

// Steps of `last` that a start from `restored` does again.
std::int64_t steps_beyond(const JobSnapshot& last,
                          const std::optional<CheckpointSnapshot>& restored);

// Strict JSON: what is not finite is null.
std::string to_json(const Summary& summary);
// Throws ConfigError when `path` cannot be written: to be called before anything runs.
void check_summary_target(const std::string& path);
// A file is replaced whole or not at all, the one that a link points to; into what is no file
// (a device, a pipe) it is written. Throws ConfigError.
void write_summary(const Summary& summary, const std::string& path);

}  // namespace leeway::launcher
