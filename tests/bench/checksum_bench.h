// What CRC32C of the payloads costs: whole steps of a model of 64 MiB through the worker's data
// plane and the server engine, with checksums over without.
//
// Called from one thread, before any fabric is open in this process. Throws ConfigError.
#pragma once

#include <string>
#include <vector>

#include "tests/bench/bench_case.h"

namespace leeway::bench {

struct ChecksumOptions {
  std::string fabric = "tcp";
  int rounds = 7;
};

std::vector<Case> run_checksum(const ChecksumOptions& options);

}  // namespace leeway::bench
