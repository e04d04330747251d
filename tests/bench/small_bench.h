// What many small tensors cost: a step of 10,000 of 64 elements (256 bytes of FP32) against a step
// of one tensor of the same total size, both through the worker's data plane and the server engine:
// cast, push, commit, apply, pull. The limit is the rate of the large one.
//
// Called from one thread, before any fabric is open in this process. Throws ConfigError.
#pragma once

#include <string>
#include <vector>

#include "tests/bench/bench_case.h"

namespace leeway::bench {

struct SmallOptions {
  std::string fabric = "tcp";
  int rounds = 7;
};

std::vector<Case> run_small(const SmallOptions& options);

}  // namespace leeway::bench
