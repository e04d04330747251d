// This test binary again, in another process: one of its skipped test cases, told its role by the
// environment, with a socket between us. Called from the test's thread.
#pragma once

#include <sys/types.h>

#include <string>

namespace leeway::transport::testing {

struct SelfProcess {
  pid_t pid = -1;
  int socket = -1;  // our end
};

// In the child `variable` is "FD ROLE": FD its end of the socket, the only descriptor of ours that
// it has. Throws std::runtime_error.
SelfProcess start_self(const std::string& test_case, const std::string& variable,
                       const std::string& role);

}  // namespace leeway::transport::testing
