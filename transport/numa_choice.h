// On which NUMA nodes a server keeps its memory and computes: those of its NICs. A core without
// I/O: machine and NICs come in as values, what comes out is carried out by transport/numa_bind.h.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "transport/topology.h"

namespace leeway::transport {

// A NIC that carries the server's bytes.
struct NicInUse {
  std::string name;
  int numa_node = kNoNode;
  double rate_gbps = 0;  // 0: not known
};

struct NumaPlan {
  std::vector<int> nodes;  // of the memory; it is spread over several evenly; empty: unbound
  std::string cpus;        // of the threads, as in NumaNode; empty: unbound
  std::string why;
  friend bool operator==(const NumaPlan&, const NumaPlan&) = default;
};

// The node that most of the bytes pass, and others that at least half as many do. A machine of one
// node, NICs of which no node is known, and a process that was `confined` to some of the CPUs that
// there are (by whoever started it, who knows better), are left as they are.
NumaPlan choose_numa(const std::vector<NumaNode>& machine, std::span<const NicInUse> nics,
                     bool confined);

// "memory and threads on NUMA node 1 (CPUs 48-95): ...", for the log and leeway-doctor.
std::string describe(const NumaPlan& plan);

}  // namespace leeway::transport
