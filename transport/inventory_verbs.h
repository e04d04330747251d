// RDMA devices: libibverbs' list with the state of their ports, completed from sysfs.
// Called while starting, by inventory.cc and its tests.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "transport/topology.h"

namespace leeway::transport {

// As libibverbs says it.
struct RdmaPort {
  int number = 1;
  bool active = false;
  bool ethernet = false;
};
struct RdmaDevice {
  std::string name;
  std::vector<RdmaPort> ports;
};

// Nothing where there is no RDMA. A device that cannot be opened has no ports.
std::vector<RdmaDevice> list_rdma_devices();

// Only place.address is filled in of the place, and of each port the interface, not its addresses.
std::vector<Nic> read_rdma_nics(const std::vector<RdmaDevice>& devices,
                                const std::filesystem::path& sysfs);

}  // namespace leeway::transport
