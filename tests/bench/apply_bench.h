// How near the servers' update comes to the speed of memory: FP16 gradient in, FP16 published copy
// out, over a triad (a = b + s * c, stores past the caches) of the same threads in the same round.
//
// Called from one thread, which starts the others. Allocates 4 * master_bytes; throws ConfigError
// for options that make no sense and std::bad_alloc.
#pragma once

#include <cstddef>
#include <vector>

#include "tests/bench/bench_case.h"

namespace leeway::bench {

struct ApplyOptions {
  std::size_t master_bytes = std::size_t{256} << 20;  // FP32 master; well above the caches
  int rounds = 7;                                     // at least 5 for a figure worth keeping
  std::vector<int> threads = {1, 2};
};

std::vector<Case> run_apply(const ApplyOptions& options);

}  // namespace leeway::bench
