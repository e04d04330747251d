#include "transport/rails.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "transport/fabric_rail.h"
#include "transport/host_addresses.h"
#include "transport/host_rail.h"
#include "transport/inventory.h"
#include "transport/nic_choice.h"
#include "transport/providers.h"
#include "transport/stream_rail.h"

namespace leeway::transport {
namespace {

using Rails = std::vector<std::unique_ptr<Rail>>;

std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> parts;
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    if (comma > 0) parts.emplace_back(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return parts;
}

void open_at(const ProviderTraits& traits, Place place, const EndpointOptions& options,
             const RailPlan& plan, Rails& rails) {
  const FabricRail::Standing standing{.megabits = static_cast<std::uint32_t>(plan.rate_gbps * 1000),
                                      .numa_node = plan.numa_node,
                                      .near = plan.near};
  place.device_memory = options.device_memory;
  if (place.device_memory && !look_for(traits, place)) place.device_memory = false;
  rails.push_back(
      std::make_unique<FabricRail>(choose_provider(traits, place), options.peers, standing));
}

std::optional<std::string> gpu_of(const EndpointOptions& options, const Topology& topology) {
  if (options.gpu == "auto")
    return local_gpu(topology, std::getenv("LOCAL_RANK"), std::getenv("CUDA_VISIBLE_DEVICES"));
  return options.gpu.empty() ? std::nullopt : std::optional(options.gpu);
}

// TCP: a rail for each address that was given, or several on a fast NIC.
void open_addresses(const EndpointOptions& options, Rails& rails) {
  auto addresses = split(options.bind);
  if (addresses.empty())
    throw ConfigError("bind address '': give one of this machine's, or several with commas");
  for (std::string& address : addresses) address = own_address(address);
  // Of the loopback there is nothing to know.
  const bool nics = !std::ranges::all_of(addresses, is_loopback);
  const Topology topology = nics ? read_topology() : Topology();
  const auto gpu = addresses.size() > 1 && nics ? gpu_of(options, topology) : std::nullopt;
  std::size_t opened = 0;
  for (const RailPlan& plan : plan_streams(plan_addresses(topology, addresses, gpu)))
    rails.push_back(std::make_unique<StreamRail>(
        StreamRail::Place{.address = plan.address,
                          .port = opened++ < addresses.size() ? options.port : std::uint16_t{0},
                          .megabits = static_cast<std::uint32_t>(plan.rate_gbps * 1000),
                          .numa_node = plan.numa_node,
                          .near = plan.near}));
}

// NICs: those of the inventory, or of it those that the addresses given are on.
void open_nics(const ProviderTraits& traits, const EndpointOptions& options, Rails& rails) {
  choose_provider(traits, {});  // none here: it says what there is instead
  const Topology topology = read_topology();
  RailRequest request{.fabric = std::string(traits.family), .gpu = gpu_of(options, topology)};
  for (const std::string& address : split(options.bind))
    if (!is_loopback(address)) request.devices.push_back(own_address(address));
  for (const RailPlan& plan : choose_rails(topology, request))
    open_at(traits,
            {.address = traits.binds_to_ip ? plan.address : "",
             .port = options.port,
             .domain = traits.binds_to_ip ? "" : plan.domain},
            options, plan, rails);
}

void open_family(const ProviderTraits& traits, const EndpointOptions& options, Rails& rails) {
  if (!traits.ours())
    open_nics(traits, options, rails);
  else if (traits.binds_to_ip)
    open_addresses(options, rails);
  else
    rails.push_back(std::make_unique<HostRail>());
}

}  // namespace

std::vector<std::unique_ptr<Rail>> open_rails(const EndpointOptions& options) {
  for (const ProviderTraits& traits : provider_table())
    if (options.fabric == "auto" || options.fabric == traits.family)
      set_parameters(traits, options.peers);
  Rails rails;
  if (options.fabric == "auto") {
    // The best that reaches other hosts, and beside it shared memory for peers of this one.
    for (const ProviderTraits& traits : provider_table())
      if (rails.empty() && (traits.ours() || look_for(traits, {})))
        open_family(traits, options, rails);
    open_family(family_traits("shm"), options, rails);
    return rails;
  }
  for (const ProviderTraits& traits : provider_table())
    if (traits.family == options.fabric) open_family(traits, options, rails);
  if (rails.empty())
    throw ConfigError(
        fmt::format("fabric '{}' is unknown: use auto, efa, verbs, tcp or shm", options.fabric));
  return rails;
}

}  // namespace leeway::transport
