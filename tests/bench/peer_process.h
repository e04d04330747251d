// The other process of a benchmark: this program again, as `leeway-bench peer`, with an Endpoint
// and a RawFabric that own as much registered memory as ours, and do what we ask.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tests/bench/child_process.h"
#include "transport/endpoint.h"

namespace leeway::bench {

// One side of a connection, as the other must know it.
struct Reachable {
  std::vector<std::byte> address;
  transport::Window memory;
};

// Used from one thread. The process ends with it.
class PeerProcess {
 public:
  PeerProcess(const std::string& fabric, std::size_t bytes);  // throws ConfigError

  const Reachable& endpoint() const noexcept { return endpoint_; }
  const Reachable& raw() const noexcept { return raw_; }
  // From now on the peer spins on its raw queue, or sleeps beside it so that it costs us no core.
  void spin_raw(bool on);
  // While it spins, it sends each raw message back to this address.
  void echo_raw(const std::vector<std::byte>& address);

 private:
  ChildProcess process_;
  Reachable endpoint_, raw_;
};

// What `leeway-bench peer` does: serves until the parent hangs up. Returns the exit code.
int serve_as_peer(const std::string& fabric, std::size_t bytes);

}  // namespace leeway::bench
