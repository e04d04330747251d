// leeway-scheduler without its main(): options from flags, environment and file, then a Service
// until the job is over.
#pragma once

#include <iosfwd>

namespace leeway::scheduler {

// The exit status: 0 after DONE, 1 after FAILED or when it could not start (one line on `err`).
// Takes SIGINT and SIGTERM for itself; call it from main, before any thread is started.
int run_daemon(int argc, char** argv, std::ostream& out, std::ostream& err);

}  // namespace leeway::scheduler
