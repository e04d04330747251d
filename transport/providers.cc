#include "transport/providers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "transport/signals.h"

namespace leeway::transport {
namespace {

using namespace std::string_view_literals;

constexpr std::array kEfaNames = {"efa"sv};
constexpr std::array kVerbsNames = {"verbs;ofi_rxm"sv};
constexpr std::array kTable = {
    ProviderTraits{.family = "efa",
                   .names = kEfaNames,
                   .waiting = Waiting::kPolling,
                   .strict_memory = false,
                   .pins_memory = true,
                   .maps_memory = false,
                   .binds_to_ip = false,
                   .sized_by_peers = false,
                   .rxm_queue = 0,
                   .rxm_shared_receives = 0,
                   .delivery = Delivery::kAsked,
                   .sends_arrive = true,
                   .remedy = "run on an instance with an EFA device and its driver"},
    ProviderTraits{.family = "verbs",
                   .names = kVerbsNames,
                   .waiting = Waiting::kDescriptor,
                   .strict_memory = false,
                   .pins_memory = true,
                   .maps_memory = false,
                   .binds_to_ip = true,
                   .sized_by_peers = true,
                   .rxm_queue = 64,
                   .rxm_shared_receives = 256,
                   .delivery = Delivery::kAlways,
                   .sends_arrive = true,
                   .remedy =
                       "check that ibv_devinfo shows an active port and that the address given "
                       "with --bind is on it"},
    ProviderTraits{.family = "tcp",
                   .names = {},
                   .waiting = Waiting::kDescriptor,
                   .strict_memory = false,
                   .pins_memory = false,
                   .maps_memory = false,
                   .binds_to_ip = true,
                   .sized_by_peers = false,
                   .rxm_queue = 0,
                   .rxm_shared_receives = 0,
                   .delivery = Delivery::kAlways,
                   .sends_arrive = false,
                   .remedy = "give an address of this machine with --bind"},
    ProviderTraits{
        .family = "shm",
        .names = {},
        .waiting = Waiting::kDescriptor,
        .strict_memory = false,
        .pins_memory = false,
        .maps_memory = true,
        .binds_to_ip = false,
        .sized_by_peers = false,
        .rxm_queue = 0,
        .rxm_shared_receives = 0,
        .delivery = Delivery::kAlways,
        .sends_arrive = true,
        .remedy = "run both processes on one host, in one network namespace, as one user"},
};

Info hints_for(const ProviderTraits& traits, std::string_view name, bool device_memory) {
  Info hints(fi_allocinfo());
  if (!hints) throw ConfigError("libfabric: out of memory");
  hints->caps = FI_MSG | FI_RMA;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;  // each post has a context of its own
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->threading = FI_THREAD_SAFE;  // memory is registered from other threads
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints->domain_attr->mr_mode =
      traits.strict_memory ? static_cast<int>(FI_MR_BASIC)
                           : FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  if (device_memory) {
    hints->caps |= FI_HMEM;
    hints->domain_attr->mr_mode |= FI_MR_HMEM;
  }
  hints->fabric_attr->prov_name = strdup(std::string(name).c_str());
  return hints;
}

bool accepted(const ProviderTraits& traits, const fi_info& info) {
  const std::string_view name =
      info.fabric_attr->prov_name != nullptr ? info.fabric_attr->prov_name : "";
  return std::find(traits.names.begin(), traits.names.end(), name) != traits.names.end() &&
         info.ep_attr->type == FI_EP_RDM;
}

}  // namespace

std::span<const ProviderTraits> provider_table() { return kTable; }

const ProviderTraits& family_traits(std::string_view family) {
  const auto it = std::ranges::find(kTable, family, &ProviderTraits::family);
  LEEWAY_CHECK(it != kTable.end());
  return *it;
}

Info look_for(const ProviderTraits& traits, const Place& place) {
  const KeepSignals keep;
  for (const std::string_view name : traits.names) {
    const Info hints = hints_for(traits, name, place.device_memory);
    if (!place.domain.empty()) hints->domain_attr->name = strdup(place.domain.c_str());
    fi_info* found = nullptr;
    const bool bound = traits.binds_to_ip && !place.address.empty();
    const std::string port = std::to_string(place.port);
    if (fi_getinfo(place.device_memory ? kDeviceFabricVersion : kFabricVersion,
                   bound ? place.address.c_str() : nullptr,
                   bound && place.port != 0 ? port.c_str() : nullptr, bound ? FI_SOURCE : 0,
                   hints.get(), &found) != 0)
      continue;
    const Info all(found);
    for (const fi_info* info = all.get(); info != nullptr; info = info->next)
      if (accepted(traits, *info)) return Info(fi_dupinfo(info));
  }
  return nullptr;
}

// libfabric takes these from the environment alone, when it is first used; what the user set stays.
void set_parameters(const ProviderTraits& traits, std::uint32_t peers) {
  const auto set = [](const char* name, std::size_t value) {
    setenv(name, std::to_string(value).c_str(), 0);
  };
  // Memory is registered once and for long. A cache would keep it registered, and open to peers who
  // know its key, after it was given up.
  if (traits.pins_memory) set("FI_MR_CACHE_MAX_COUNT", 0);
  if (traits.sized_by_peers) set("FI_UNIVERSE_SIZE", std::max(peers, 2u));
  if (traits.rxm_queue == 0) return;
  set("FI_OFI_RXM_MSG_TX_SIZE", traits.rxm_queue);
  set("FI_OFI_RXM_MSG_RX_SIZE", std::max(traits.rxm_queue, traits.rxm_shared_receives));
  if (traits.rxm_shared_receives != 0) set("FI_OFI_RXM_USE_SRX", 1);
}

std::string what_is_there() {
  std::vector<std::string_view> found;
  for (const ProviderTraits& traits : kTable)
    if (traits.ours() || look_for(traits, {})) found.push_back(traits.family);
  return fmt::format("{}", fmt::join(found, ", "));
}

Choice choose_provider(const ProviderTraits& traits, const Place& place) {
  if (Info info = look_for(traits, place)) return {&traits, std::move(info)};
  throw ConfigError(fmt::format(
      "fabric {}: libfabric {}.{} offers no such device here (found: {}); {}", traits.family,
      FI_MAJOR(fi_version()), FI_MINOR(fi_version()), what_is_there(), traits.remedy));
}

}  // namespace leeway::transport
