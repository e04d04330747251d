// What the person who starts a job said: command line, environment and job file in one plan.
// Every value is checked here, before anything is started. Called from main, at start.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/inject.h"
#include "common/job_settings.h"
#include "common/knobs.h"

namespace leeway::launcher {

// Settings of one start; those of the model's training are in JobSettings. A job file has them in
// its table [run].
struct RunSettings {
  std::uint32_t servers = 1;
  std::uint32_t workers = 1;
  std::uint32_t max_workers = 0;
  Choice fabric{"auto", {"auto", "efa", "verbs", "tcp", "shm"}};
  std::string bind = "127.0.0.1";
  std::string listen = "127.0.0.1:0";
  std::string checkpoint_dir;
  std::string resume = "never";
  std::uint32_t max_restarts = 0;
  std::string log_dir;
  std::string summary;

  // Binds every field above; the Knobs must not outlive this.
  void describe(Knobs& knobs);
};

struct LaunchPlan {
  RunSettings run;
  JobSettings job;
  std::map<std::string, std::string> job_set;  // the job settings that somebody set
  std::vector<Injection> injections;
  std::string inject;                // the same as text, for LEEWAY_INJECT
  std::vector<std::string> program;  // as typed
  std::vector<std::string> notes;    // warnings to print at start
};

struct Parsed {
  std::optional<LaunchPlan> plan;  // nothing: print `text` and exit 0
  std::string text;                // --help, --print-config
};

// `leeway-run worker`: one worker more for a job that runs.
struct JoinPlan {
  std::vector<std::string> program;                // as typed
  std::map<std::string, std::string> environment;  // all of it
};

// `arguments` without the program's own name; `environment` as environ has it. Throws ConfigError.
Parsed parse_options(const std::vector<std::string>& arguments,
                     const std::map<std::string, std::string>& environment);
// The arguments after "worker". Nothing: `help` is to be printed.
std::optional<JoinPlan> parse_join_options(const std::vector<std::string>& arguments,
                                           const std::map<std::string, std::string>& environment,
                                           std::string& help);

}  // namespace leeway::launcher
