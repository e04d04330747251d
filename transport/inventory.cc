#include "transport/inventory.h"

#include <algorithm>
#include <cstring>

#include "transport/inventory_netdevs.h"
#include "transport/inventory_verbs.h"

namespace leeway::transport {
namespace {

constexpr const char* kSysfs = "/sys";

// mlx5_2 before mlx5_10.
void sort_naturally(std::vector<Nic>& nics) {
  std::sort(nics.begin(), nics.end(), [](const Nic& a, const Nic& b) {
    return strverscmp(a.name.c_str(), b.name.c_str()) < 0;
  });
}

}  // namespace

Topology join_inventory(PciInventory pci, std::vector<Nic> rdma, std::vector<Nic> netdevs) {
  sort_naturally(rdma);
  sort_naturally(netdevs);
  for (Nic& nic : rdma) {
    for (Port& port : nic.ports) {
      const auto it = std::find_if(netdevs.begin(), netdevs.end(),
                                   [&](const Nic& netdev) { return netdev.name == port.netdev; });
      if (port.netdev.empty() || it == netdevs.end()) continue;
      port.addresses = it->ports.front().addresses;
      if (nic.attachment == Attachment::kHardware) netdevs.erase(it);
    }
  }
  Topology out{.numa_nodes = std::move(pci.numa_nodes),
               .nics = std::move(rdma),
               .gpus = std::move(pci.gpus)};
  out.nics.insert(out.nics.end(), std::make_move_iterator(netdevs.begin()),
                  std::make_move_iterator(netdevs.end()));
  for (Nic& nic : out.nics)
    if (const auto it = pci.places.find(nic.place.address); it != pci.places.end())
      nic.place = it->second;
  return out;
}

Topology read_topology() {
  return join_inventory(read_pci(), read_rdma_nics(list_rdma_devices(), kSysfs),
                        read_netdevs(list_interfaces(), kSysfs));
}

}  // namespace leeway::transport
