// The run that a person sees, as text. Pure functions; the lines are printed elsewhere.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "scheduler/launcher/snapshot.h"
#include "scheduler/launcher/summary.h"
#include "scheduler/launcher/supervisor_core.h"

namespace leeway::launcher {

// "1 server", "3 servers".
std::string counted(std::uint32_t count, const char* noun);

// One line a member: provider, device, address, process.
std::vector<std::string> start_lines(const JobSnapshot& snapshot);

// "epoch 1.25  loss 0.412  10300 samples/s  staleness 1 (bound 2)  push 0.12 GB/s  pull 0.10 GB/s";
// the staleness is the largest one since `before`.
std::string progress_line(const std::optional<JobSnapshot>& before, const JobSnapshot& now);

// "worker.1 was killed by SIGSEGV (3.2 s after the start, at step 120)".
std::string failure_line(const Failure& failure);

// The table at the end.
std::vector<std::string> end_lines(const Summary& summary, const std::string& checkpoint_dir,
                                   const std::string& log_dir);

}  // namespace leeway::launcher
