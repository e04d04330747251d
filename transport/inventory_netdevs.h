// Network interfaces: the kernel's list with flags and addresses, completed from sysfs.
// Called while starting, by inventory.cc and its tests.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "transport/topology.h"

namespace leeway::transport {

// As getifaddrs() lists it.
struct Interface {
  std::string name;
  bool running = false;  // up, and there is a carrier
  bool loopback = false;
  bool infiniband = false;
  std::vector<std::string> addresses;
};

std::vector<Interface> list_interfaces();

// Of each interface a NIC with one port. Only place.address is filled in of its place.
std::vector<Nic> read_netdevs(const std::vector<Interface>& interfaces,
                              const std::filesystem::path& sysfs);

// The PCI address of the device that `link` (a "device" link of sysfs) leads to, or of the nearest
// one above it; empty when it is not on PCI.
std::string pci_address_of(const std::filesystem::path& link);

// One line of a file of sysfs or procfs, without its end; empty when it cannot be read.
std::string read_line(const std::filesystem::path& file);

}  // namespace leeway::transport
