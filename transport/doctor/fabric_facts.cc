#include "transport/doctor/fabric_facts.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "transport/fabric_handles.h"
#include "transport/providers.h"
#include "transport/signals.h"

namespace leeway::doctor {
namespace {

// Only what an endpoint of ours would take; domains in libfabric's order, each once.
Offer offer_of(std::string_view family, std::string_view name) {
  Offer out{.family = std::string(family), .provider = std::string(name), .domains = {}};
  const transport::Info hints(fi_allocinfo());
  if (!hints) return out;
  hints->caps = FI_MSG | FI_RMA;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->fabric_attr->prov_name = strdup(out.provider.c_str());
  fi_info* found = nullptr;
  if (fi_getinfo(transport::kFabricVersion, nullptr, nullptr, 0, hints.get(), &found) != 0)
    return out;
  const transport::Info all(found);
  for (const fi_info* info = all.get(); info != nullptr; info = info->next) {
    if (info->fabric_attr->prov_name == nullptr || info->fabric_attr->prov_name != name) continue;
    std::string domain = info->domain_attr->name == nullptr ? "" : info->domain_attr->name;
    if (std::find(out.domains.begin(), out.domains.end(), domain) == out.domains.end())
      out.domains.push_back(std::move(domain));
  }
  return out;
}

}  // namespace

FabricFacts read_fabric() {
  const transport::KeepSignals keep;
  FabricFacts out{.major = static_cast<int>(FI_MAJOR(fi_version())),
                  .minor = static_cast<int>(FI_MINOR(fi_version())),
                  .offers = {}};
  for (const transport::ProviderTraits& traits : transport::provider_table())
    for (const std::string_view name : traits.names)
      if (Offer offer = offer_of(traits.family, name); !offer.domains.empty()) {
        out.offers.push_back(std::move(offer));
        break;  // the best name of this family
      }
  return out;
}

}  // namespace leeway::doctor
