// Carries out what transport/numa_choice.h decides, through hwloc.
//
// Called while starting. Reading takes some milliseconds where there are several NUMA nodes, and
// next to nothing where there is one.
#pragma once

#include <vector>

#include "common/result.h"
#include "transport/numa_choice.h"

namespace leeway::transport {

struct NumaMachine {
  std::vector<NumaNode> nodes;  // empty: there is one, or the system does not say
  bool confined = false;        // this thread may not run on every CPU of the machine
};
NumaMachine read_numa();

// The calling thread, and every thread that it starts from now on, runs on the plan's CPUs, and
// pages that they touch first lie on its nodes as long as there is room, else elsewhere. A plan
// without nodes changes nothing. On an error as much is bound as could be.
Status bind_to(const NumaPlan& plan);

// CPUs that the calling thread may run on.
unsigned usable_cpus();

}  // namespace leeway::transport
