#include "tests/conformance/fabric.h"

#include <atomic>
#include <utility>

#include "tests/conformance/hostile_rail.h"
#include "tests/conformance/loopback_rail.h"
#include "tests/unit/transport/libfabric_tcp.h"
#include "transport/endpoint_impl.h"
#include "transport/fabric_rail.h"

namespace leeway::conformance {
namespace {

Fabric& chosen_fabric() {
  static Fabric fabric;
  return fabric;
}

// Each of a run has a seed of its own, in the order of opening.
std::unique_ptr<transport::Endpoint> open_hostile(const OpenOptions& options) {
  static std::atomic<std::uint64_t> opened = 0;
  const std::uint64_t seed = fabric().seed * 1000 + opened++;
  std::vector<std::unique_ptr<transport::Rail>> rails;
  rails.push_back(std::make_unique<HostileRail>(std::make_unique<LoopbackRail>(), seed,
                                                Hostility::drawn(seed)));
  return transport::endpoint_over(std::move(rails),
                                  {.fabric = "hostile", .max_transfer = options.max_transfer});
}

std::unique_ptr<transport::Endpoint> open_libfabric_tcp(const OpenOptions& options) {
  using transport::testing::kLibfabricTcp;
  transport::set_parameters(kLibfabricTcp, options.peers);
  std::vector<std::unique_ptr<transport::Rail>> rails;
  rails.push_back(std::make_unique<transport::FabricRail>(
      transport::choose_provider(kLibfabricTcp, {.address = fabric().bind, .port = options.port}),
      options.peers, transport::FabricRail::Standing{}));
  return transport::endpoint_over(
      std::move(rails),
      {.fabric = "ofi", .peers = options.peers, .max_transfer = options.max_transfer});
}

}  // namespace

const Fabric& fabric() { return chosen_fabric(); }
void choose_fabric(Fabric chosen) { chosen_fabric() = std::move(chosen); }

std::unique_ptr<transport::Endpoint> open_endpoint(const OpenOptions& options) {
  if (fabric().hostile()) return open_hostile(options);
  if (fabric().libfabric_tcp()) return open_libfabric_tcp(options);
  return transport::Endpoint::open({.fabric = fabric().name,
                                    .bind = fabric().bind,
                                    .port = options.port,
                                    .peers = options.peers,
                                    .max_transfer = options.max_transfer});
}

}  // namespace leeway::conformance
