// A whole run: starts the job, starts it again where that was asked for and can help, says what
// came out, writes the summary. Called from main.
#pragma once

#include <map>
#include <string>

#include "scheduler/launcher/options.h"

namespace leeway::launcher {

// Returns the exit code: 0 ok, 1 failed, 130 interrupted. Throws ConfigError before anything runs.
int launch(const LaunchPlan& plan, const std::map<std::string, std::string>& environment);

}  // namespace leeway::launcher
