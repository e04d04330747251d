// leeway-doctor without its main().
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace leeway::doctor {

// The exit status: 0 a job can run, 1 a problem would stop it, 2 with one line on `err`: the
// arguments or a file are wrong. `arguments` without the program's own name.
int run_doctor(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace leeway::doctor
