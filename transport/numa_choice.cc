#include "transport/numa_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

namespace leeway::transport {
namespace {

constexpr double kLeastShare = 0.5;  // of what passes the busiest node

struct Carried {
  double gbps = 0;  // or NICs, where a rate is not known
  std::vector<std::string> names;
};

// By node; those that the machine does not have are left out.
std::map<int, Carried> carried(const std::vector<NumaNode>& machine,
                               std::span<const NicInUse> nics) {
  const bool rates =
      std::ranges::all_of(nics, [](const NicInUse& nic) { return nic.rate_gbps > 0; });
  std::map<int, Carried> all;
  for (const NicInUse& nic : nics) {
    if (std::ranges::find(machine, nic.numa_node, &NumaNode::number) == machine.end()) continue;
    Carried& here = all[nic.numa_node];
    here.gbps += rates ? nic.rate_gbps : 1;
    here.names.push_back(nic.name);
  }
  return all;
}

NumaPlan left_alone(std::string why) { return {.why = std::move(why)}; }

}  // namespace

NumaPlan choose_numa(const std::vector<NumaNode>& machine, std::span<const NicInUse> nics,
                     bool confined) {
  if (machine.size() < 2) return left_alone("the machine has one NUMA node");
  if (confined) return left_alone("this process was given some of the CPUs by who started it");
  const auto all = carried(machine, nics);
  if (all.empty()) return left_alone("the NUMA node of no NIC in use is known");
  double most = 0;
  for (const auto& [node, here] : all) most = std::max(most, here.gbps);
  NumaPlan plan;
  std::vector<std::string> names, cpus;
  for (const auto& [node, here] : all) {
    if (here.gbps < kLeastShare * most) continue;
    plan.nodes.push_back(node);
    names.insert(names.end(), here.names.begin(), here.names.end());
    cpus.push_back(std::ranges::find(machine, node, &NumaNode::number)->cpus);
  }
  // A node of memory alone has no CPUs.
  if (plan.nodes.size() < machine.size() &&
      std::ranges::none_of(cpus, [](const std::string& list) { return list.empty(); }))
    plan.cpus = fmt::format("{}", fmt::join(cpus, ","));
  plan.why = plan.nodes.size() == 1
                 ? fmt::format("{} of the {} NICs in use {} there ({})", names.size(), nics.size(),
                               names.size() == 1 ? "is" : "are", fmt::join(names, " "))
                 : fmt::format("the NICs in use are on all of these ({})", fmt::join(names, " "));
  return plan;
}

std::string describe(const NumaPlan& plan) {
  const std::string where =
      plan.nodes.empty() ? "wherever the system puts them"
      : plan.nodes.size() == 1
          ? fmt::format("on NUMA node {}", plan.nodes.front())
          : fmt::format("spread over NUMA nodes {}", fmt::join(plan.nodes, " and "));
  const bool together = plan.nodes.empty() || !plan.cpus.empty();
  return fmt::format("{} {}{}: {}", together ? "memory and threads" : "memory", where,
                     plan.nodes.empty()  ? ""
                     : plan.cpus.empty() ? ", threads on any CPU"
                                         : fmt::format(" (CPUs {})", plan.cpus),
                     plan.why);
}

}  // namespace leeway::transport
