// libfabric's own provider for TCP, which Leeway does not use: what its rail over TCP is measured
// against, and, where there is no RDMA device, what the rail over libfabric is tested on.
#pragma once

#include <string_view>

#include "transport/providers.h"

namespace leeway::transport::testing {

// Up to 1.17 "tcp" has connections only and FI_EP_RDM comes as "tcp;ofi_rxm"; from 1.18 it is
// itself RDM. What became it was called "net" in 1.17; asking for that may bring "net;ofi_rxm",
// which is neither and not accepted.
inline constexpr std::string_view kLibfabricTcpNames[] = {"tcp", "tcp;ofi_rxm", "net"};
inline constexpr ProviderTraits kLibfabricTcp{
    .family = "ofi",
    .names = kLibfabricTcpNames,
    .waiting = Waiting::kDescriptor,
    .strict_memory = true,
    .pins_memory = false,
    .maps_memory = false,
    .binds_to_ip = true,
    .sized_by_peers = false,
    .rxm_queue = 64,
    .rxm_shared_receives = 0,
    .delivery = Delivery::kAsked,
    .sends_arrive = false,
    .remedy = "install a libfabric with its tcp provider (Debian: libfabric1)"};

}  // namespace leeway::transport::testing
