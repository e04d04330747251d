// What leeway-admin can be told. Writes to streams, so that tests read what a person would.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "common/result.h"
#include "scheduler/client.h"

namespace leeway::scheduler {

// `words`: the command and its arguments. `token` may be empty for those that only look.
Status run_admin_command(Client& client, const std::vector<std::string>& words,
                         const std::string& token, bool json, std::ostream& out);

// The commands, one a line, for --help.
std::string admin_commands_help();

}  // namespace leeway::scheduler
