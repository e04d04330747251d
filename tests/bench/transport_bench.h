// Reads and writes of our Endpoint between two processes, over the raw provider's in the same
// round.
//
// Called from one thread. Throws ConfigError when the fabric is not there.
#pragma once

#include <string>
#include <vector>

#include "tests/bench/bench_case.h"

namespace leeway::bench {

struct TransportOptions {
  std::string fabric = "tcp";
  int rounds = 7;
};

std::vector<Case> run_transport(const TransportOptions& options);

}  // namespace leeway::bench
