#include "transport/numa_bind.h"

#include <fmt/format.h>
#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "transport/inventory_pci.h"

namespace leeway::transport {
namespace {

using HwlocTopology = std::unique_ptr<hwloc_topology, void (*)(hwloc_topology_t)>;
using Bitmap = std::unique_ptr<hwloc_bitmap_s, void (*)(hwloc_bitmap_t)>;

Bitmap make_bitmap() { return {hwloc_bitmap_alloc(), hwloc_bitmap_free}; }

// Null where hwloc finds nothing.
HwlocTopology load() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return {nullptr, hwloc_topology_destroy};
  HwlocTopology topology(raw, hwloc_topology_destroy);
  hwloc_topology_set_all_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_STRUCTURE);
  if (hwloc_topology_load(raw) != 0) topology.reset();
  return topology;
}

// Else hwloc need not be asked.
bool may_have_several_nodes() {
  std::error_code error;
  std::filesystem::directory_iterator nodes("/sys/devices/system/node", error);
  if (error) return true;
  return std::ranges::count_if(nodes, [](const auto& entry) {
           const std::string name = entry.path().filename();
           return name.starts_with("node");
         }) > 1;
}

}  // namespace

NumaMachine read_numa() {
  NumaMachine machine;
  if (!may_have_several_nodes()) return machine;
  const HwlocTopology topology = load();
  if (!topology) return machine;
  machine.nodes = numa_nodes_of(topology.get());
  const Bitmap mine = make_bitmap();
  machine.confined =
      hwloc_get_cpubind(topology.get(), mine.get(), HWLOC_CPUBIND_THREAD) == 0 &&
      hwloc_bitmap_isincluded(hwloc_topology_get_topology_cpuset(topology.get()), mine.get()) == 0;
  return machine;
}

Status bind_to(const NumaPlan& plan) {
  if (plan.nodes.empty()) return {};
  const HwlocTopology topology = load();
  if (!topology) return fail(Code::kUnsupported, "hwloc cannot read this machine");
  std::string errors;
  const auto failed = [&](const char* what) {
    errors += fmt::format("{}{} ({})", errors.empty() ? "" : ", ", what, std::strerror(errno));
  };
  const Bitmap cpus = make_bitmap(), nodes = make_bitmap();
  if (!plan.cpus.empty() &&
      (hwloc_bitmap_list_sscanf(cpus.get(), plan.cpus.c_str()) != 0 ||
       hwloc_set_cpubind(topology.get(), cpus.get(), HWLOC_CPUBIND_THREAD) != 0))
    failed("threads");
  for (const int node : plan.nodes) hwloc_bitmap_set(nodes.get(), static_cast<unsigned>(node));
  // Not strictly: on a full node the next page comes from another, and nobody is killed.
  if (hwloc_set_membind(topology.get(), nodes.get(),
                        plan.nodes.size() == 1 ? HWLOC_MEMBIND_BIND : HWLOC_MEMBIND_INTERLEAVE,
                        HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET) != 0)
    failed("memory");
  if (errors.empty()) return {};
  return fail(Code::kUnsupported, std::move(errors));
}

unsigned usable_cpus() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return static_cast<unsigned>(CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace leeway::transport
