// NUMA nodes, PCI places and GPUs, from hwloc. Called while starting, by inventory.cc.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "transport/topology.h"

struct hwloc_topology;

namespace leeway::transport {

struct PciInventory {
  std::vector<NumaNode> numa_nodes;
  std::vector<GpuInfo> gpus;
  std::map<std::string, PciPlace> places;  // by address
};

// Empty where hwloc finds nothing. No GPU driver is asked.
PciInventory read_pci();

// In the order of their numbers.
std::vector<NumaNode> numa_nodes_of(hwloc_topology* topology);

}  // namespace leeway::transport
