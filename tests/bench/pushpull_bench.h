// Goodput of push, of pull and of both at once through the real engine in server processes and the
// real wire protocol from worker processes, over the raw provider's best one-sided operation
// between two processes in the same round.
//
// A model of n MiB has n MiB of FP32 master weights at the servers and n/2 MiB of FP16 on the wire,
// each way, for each worker and step; partitions likewise. The update is per_push, with staleness
// inf.
//
//   push  PUSH of the whole model and COMMIT, until the last step is applied; no pull
//   pull  PULL of the whole model, nothing held; no push
//   both  the weights after step c travel while the gradients of step c + 1 do; bytes of both ways
//
// A figure is the sum of all workers' bytes over the time from the first one's begin to the last
// one's end. Workers compare all weights after every round.
//
// And what the servers hold in memory for each parameter, over what they laid out at start. (What a
// server has mapped of its workers' memory on shm counts, too.)
//
// Called from one thread, before any fabric is open in this process. Throws ConfigError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/bench/bench_case.h"

namespace leeway::bench {

struct PushPullOptions {
  struct Size {
    std::uint32_t servers = 1, workers = 1;
  };
  std::string fabric = "tcp";
  int rounds = 7;
  std::size_t model_mib = 64;
  std::size_t partition_mib = 4;
  std::string optimizer = "sgd";
  std::uint64_t memory_limit = 0;  // of each server, bytes; 0 = none
  std::vector<Size> sizes = {{1, 1}, {1, 2}, {1, 4}, {2, 2}};
};

std::vector<Case> run_pushpull(const PushPullOptions& options);

}  // namespace leeway::bench
