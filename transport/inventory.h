// The machine that this process runs on, as a Topology: RDMA devices from libibverbs, network
// interfaces from the kernel, PCI, NUMA and GPUs from hwloc. Needs none of them to be there: a
// machine without RDMA, GPU or PCI has a shorter list.
//
// Called while starting, from one thread: takes some ten milliseconds, opens each RDMA device once.
#pragma once

#include <vector>

#include "transport/inventory_pci.h"
#include "transport/topology.h"

namespace leeway::transport {

// NICs in the natural order of their names, RDMA devices first; the interface of a hardware RDMA
// NIC is in its port and not listed again.
Topology read_topology();

// Its last step, for tests: lists read one by one become one.
Topology join_inventory(PciInventory pci, std::vector<Nic> rdma, std::vector<Nic> netdevs);

}  // namespace leeway::transport
