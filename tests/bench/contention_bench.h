// What pulls cost the update: a server's engine updates a model while two other workers pull all of
// it, again and again, over the same update with nobody pulling, in turn.
//
//   elapsed    parameters updated per second from the beginning of each update to its end, waiting
//              for copies that a pull still reads included
//   processor  parameters updated per second that the computing threads ran: what contention for
//              memory and caches costs, whatever else the scheduler puts on their cores
//   pulls      what the pulls move meanwhile, over what they move while nothing is updated
//
// Each update begins when the one before is done, so none is merged with another. Gradients are all
// alike, so each partition that is pulled must be one value, that of its version: every one is
// compared in rounds of their own, which are not timed (comparing takes as long as pulling).
//
// Called from one thread, before any fabric is open in this process. Throws ConfigError.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tests/bench/bench_case.h"

namespace leeway::bench {

struct ContentionOptions {
  std::string fabric = "tcp";
  int rounds = 7;
  std::size_t model_mib = 64;
  std::size_t partition_mib = 4;
  std::string optimizer = "momentum";
  std::vector<unsigned> threads = {1, 2};  // that compute
};

std::vector<Case> run_contention(const ContentionOptions& options);

}  // namespace leeway::bench
