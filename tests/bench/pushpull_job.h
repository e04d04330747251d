// A small job without a scheduler: servers with the real shard engine and workers, each a process
// of its own.
//
// Used from one thread, before any fabric is open in this process. Throws ConfigError.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tests/bench/child_process.h"

namespace leeway::bench {

class PushPullJob {
 public:
  struct Options {
    std::string fabric = "tcp";
    std::uint32_t servers = 1, workers = 1;
    std::size_t elements = 0;  // of the model: so many tensors of one size
    std::size_t tensors = 1;
    std::size_t partition_elements = 0;
    bool step_core = false;          // workers move whole steps, as a session does
    bool checksum = false;           // of the payloads, with step_core
    std::string optimizer = "sgd";   // the servers'
    std::uint64_t memory_limit = 0;  // of each server, bytes; 0 = none
    unsigned threads = 0;            // that compute, of each server; 0 = one a core
    bool uniform = false;            // all gradients are alike
  };
  explicit PushPullJob(const Options& options);

  // Every worker does `what` at once. Their answers.
  std::vector<nlohmann::json> order(const nlohmann::json& what);
  // One worker alone.
  void tell(std::uint32_t worker, const nlohmann::json& what);
  nlohmann::json answer_of(std::uint32_t worker);
  // Each server's.
  std::vector<nlohmann::json> ask_servers(const nlohmann::json& what);
  // GB/s of all workers together; the weights are checked afterwards.
  double round(const std::string& kind, int steps);
  // Bytes of all servers together.
  struct Memory {
    double planned = 0;   // what they laid out at start
    double resident = 0;  // what they hold now
  };
  Memory server_memory();
  // Seconds that the processes' threads have run, servers first.
  std::vector<double> processor_seconds();

 private:
  using Member = std::unique_ptr<ChildProcess>;
  static std::vector<Member> start(const char* role, std::uint32_t count,
                                   const std::string& fabric);
  nlohmann::json answer(ChildProcess& worker);

  std::vector<Member> servers_, workers_;  // workers end first
  std::uint64_t steps_ = 0;
};

}  // namespace leeway::bench
