// How long small things take, and what waiting costs.
//
//   spinning  from sending an 8-byte push with its COMMIT to the COMMITTED, one after the other;
//             the limit is a message and its echo on the raw provider, both sides spinning
//   sleeping  the same after a pause in which both sides fall asleep; the limit is a byte and its
//             echo on a blocking TCP socket after the same pause
//   idle      the share of a core that a server and a worker use while nothing happens, in percent;
//             the limit is the 2 % that they may
//
// Values and limits are times or shares: less is better.
//
// Called from one thread, before any fabric is open in this process. Throws ConfigError.
#pragma once

#include <string>
#include <vector>

#include "tests/bench/bench_case.h"

namespace leeway::bench {

struct LatencyOptions {
  std::string fabric = "tcp";
  int rounds = 7;
};

std::vector<Case> run_latency(const LatencyOptions& options);

}  // namespace leeway::bench
