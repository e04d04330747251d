// Finding programs: what the user names, and Leeway's own daemons. Called from main, at start.
#pragma once

#include <map>
#include <string>

namespace leeway::launcher {

// A name with '/' is a path. Any other is looked for in LEEWAY_BIN_PATH (directories separated by
// ':', for development, where programs lie in many folders), beside this program, and in PATH.
// Throws ConfigError.
std::string find_program(const std::string& name,
                         const std::map<std::string, std::string>& environment);

// 128 random bits, in hexadecimal.
std::string random_token();

}  // namespace leeway::launcher
