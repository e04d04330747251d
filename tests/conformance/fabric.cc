#include "tests/conformance/fabric.h"

#include <utility>

namespace leeway::conformance {
namespace {

Fabric& chosen_fabric() {
  static Fabric fabric;
  return fabric;
}

}  // namespace

const Fabric& fabric() { return chosen_fabric(); }
void choose_fabric(Fabric chosen) { chosen_fabric() = std::move(chosen); }

std::unique_ptr<transport::Endpoint> open_endpoint(const OpenOptions& options) {
  return transport::Endpoint::open({.fabric = fabric().name,
                                    .bind = fabric().bind,
                                    .port = options.port,
                                    .peers = options.peers,
                                    .max_transfer = options.max_transfer});
}

}  // namespace leeway::conformance
