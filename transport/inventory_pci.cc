#include "transport/inventory_pci.h"

#include <fmt/format.h>
#include <hwloc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

namespace leeway::transport {
namespace {

using PciDevice = hwloc_obj_attr_u::hwloc_pcidev_attr_s;
using Bridge = hwloc_obj_attr_u::hwloc_bridge_attr_s;

constexpr unsigned kDisplayClass = 0x03;  // upper byte of a PCI class
constexpr unsigned kVga = 0x0300;
constexpr unsigned kNvidia = 0x10de;

// A display controller for computing. The VGA part of other makers is what drives the screen of a
// laptop or the console of a server.
bool is_gpu(const PciDevice& pci) {
  if (pci.class_id >> 8 != kDisplayClass) return false;
  return pci.class_id != kVga || pci.vendor_id == kNvidia;
}

std::string address_of(const PciDevice& pci) {
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", static_cast<unsigned>(pci.domain), pci.bus,
                     pci.dev, static_cast<unsigned>(pci.func));
}

std::string name_of(const Bridge& bridge) {
  if (bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI) return address_of(bridge.upstream.pci);
  return fmt::format("{:04x}:{:02x}", static_cast<unsigned>(bridge.downstream.pci.domain),
                     bridge.downstream.pci.secondary_bus);
}

int node_of(hwloc_topology_t topology, hwloc_obj_t device) {
  const hwloc_obj_t above = hwloc_get_non_io_ancestor_obj(topology, device);
  if (above == nullptr || hwloc_bitmap_weight(above->nodeset) != 1) return kNoNode;
  return hwloc_bitmap_first(above->nodeset);
}

PciPlace place_of(hwloc_topology_t topology, hwloc_obj_t device) {
  PciPlace place{.address = address_of(device->attr->pcidev),
                 .numa_node = node_of(topology, device)};
  for (hwloc_obj_t above = device->parent; above != nullptr; above = above->parent)
    if (above->type == HWLOC_OBJ_BRIDGE) place.bridges.push_back(name_of(above->attr->bridge));
  std::reverse(place.bridges.begin(), place.bridges.end());
  return place;
}

std::string list_of(hwloc_const_bitmap_t set) {
  char* text = nullptr;
  if (hwloc_bitmap_list_asprintf(&text, set) < 0) return "";
  const std::unique_ptr<char, void (*)(void*)> owner(text, std::free);
  return is_cpu_list(text) ? text : "";
}

}  // namespace

std::vector<NumaNode> numa_nodes_of(hwloc_topology* topology) {
  std::vector<NumaNode> nodes;
  for (hwloc_obj_t node = nullptr;
       (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr;)
    nodes.push_back({static_cast<int>(node->os_index), list_of(node->cpuset)});
  std::ranges::sort(nodes, {}, &NumaNode::number);
  return nodes;
}

PciInventory read_pci() {
  PciInventory out;
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return out;
  const std::unique_ptr<hwloc_topology, void (*)(hwloc_topology_t)> topology(
      raw, hwloc_topology_destroy);
  hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_ALL);
  // These would load drivers and contact GPUs or the screen.
  for (const char* component : {"cuda", "nvml", "opencl", "rsmi", "levelzero", "gl"})
    hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component);
  if (hwloc_topology_load(raw) != 0) return out;

  out.numa_nodes = numa_nodes_of(raw);
  for (hwloc_obj_t device = nullptr; (device = hwloc_get_next_pcidev(raw, device)) != nullptr;) {
    PciPlace place = place_of(raw, device);
    const PciDevice& pci = device->attr->pcidev;
    if (is_gpu(pci))
      out.gpus.push_back({fmt::format("{:04x}:{:04x}", pci.vendor_id, pci.device_id), place});
    out.places.emplace(place.address, std::move(place));
  }
  std::sort(out.gpus.begin(), out.gpus.end(),
            [](const GpuInfo& a, const GpuInfo& b) { return a.place.address < b.place.address; });
  return out;
}

}  // namespace leeway::transport
