// One start of the job: starts the processes, feeds what happens to the SupervisorCore, does what
// it says, and returns when no process is left. Called from the main thread.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "scheduler/launcher/log_multiplexer.h"
#include "scheduler/launcher/options.h"
#include "scheduler/launcher/process_guard.h"
#include "scheduler/launcher/snapshot.h"
#include "scheduler/launcher/supervisor_core.h"
#include "scheduler/launcher/terminal.h"

namespace leeway::launcher {

struct JobContext {
  const LaunchPlan& plan;
  std::map<std::string, std::string> environment;  // ours, which children inherit
  std::string scheduler_path, server_path, worker_path;
  std::string token;
  std::string log_dir;
  int signals;  // a signalfd of SIGCHLD, SIGINT, SIGTERM and SIGHUP
  Terminal& terminal;
  ProcessGuard& guard;
  std::set<pid_t> not_ours;  // children that we had before: the guard, and what a shell left to us
};

struct AttemptResult {
  bool ok = false;
  bool interrupted = false;
  bool ran = false;  // it came to training
  std::optional<Failure> failure;
  std::map<std::string, int> exit_codes;
  std::optional<JobSnapshot> first, last;
  double seconds = 0;  // from RUNNING to the end of the last worker
};

// `attempt` 0 is the first start; later ones resume and are spared injected faults. Throws
// ConfigError when a program cannot be started; whatever ran is ended then.
AttemptResult run_attempt(const JobContext& context, int attempt);

}  // namespace leeway::launcher
