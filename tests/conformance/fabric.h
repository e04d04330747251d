// The fabric that this run of the suite is about, from the command line:
//
//   conformance --fabric tcp|shm|verbs|hostile|ofi [--bind ADDRESS] [--seed N] [--seeds N]
//
// `ofi` is the rail over libfabric, on libfabric's own tcp provider: a test of that rail where
// there is no RDMA device.
//
// Read once at start by main(), constant afterwards.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/endpoint.h"

namespace leeway::conformance {

struct Fabric {
  std::string name = "tcp";
  std::string bind = transport::EndpointOptions{}.bind;
  std::string other_bind;    // where other processes bind; as `bind` when empty
  int other_namespace = -1;  // a network namespace for them, open; -1 = ours
  std::uint64_t seed = 1;    // of the first of `seeds`
  std::uint32_t seeds = 50;  // how many the storms on the hostile fabric try

  bool hostile() const { return name == "hostile"; }
  bool libfabric_tcp() const { return name == "ofi"; }
  // The rest is what it can not do.
  bool has_processes() const { return !hostile(); }
  bool may_repeat_messages() const { return hostile(); }
  // Emulated verbs move a few megabytes a second: as much as shows the same.
  bool slow() const { return name == "verbs"; }
  bool has_ports() const { return name == "tcp" || name == "verbs" || libfabric_tcp(); }
  // libfabric 1.17 over TCP: a connection that closes while bytes of a read come in ends that read
  // twice, the second time out of memory that it has freed.
  bool may_close_in_reads() const { return !libfabric_tcp(); }
};

const Fabric& fabric();
void choose_fabric(Fabric chosen);

// An endpoint on it. `max_transfer` as in EndpointOptions.
struct OpenOptions {
  std::size_t max_transfer = transport::EndpointOptions{}.max_transfer;
  std::uint16_t port = 0;
  std::uint32_t peers = transport::EndpointOptions{}.peers;
};
std::unique_ptr<transport::Endpoint> open_endpoint(const OpenOptions& options = {});

}  // namespace leeway::conformance
