// leeway-admin without its main().
#pragma once

#include <iosfwd>

namespace leeway::scheduler {

// The exit status: 0, or 1 with one line on `err`.
int run_admin(int argc, char** argv, std::ostream& out, std::ostream& err);

}  // namespace leeway::scheduler
