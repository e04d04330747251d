#include "tests/bench/peer_process.h"

#include <poll.h>

#include <nlohmann/json.hpp>

#include "tests/bench/child_json.h"
#include "tests/bench/raw_fabric.h"

namespace leeway::bench {
namespace {

nlohmann::json as_json(const Reachable& side) {
  return {{"address", to_json(side.address)},
          {"remote", side.memory.address},
          {"key", side.memory.key}};
}

Reachable reachable(const nlohmann::json& side) {
  return {bytes_of(side.at("address")), {side.at("remote"), side.at("key")}};
}

}  // namespace

PeerProcess::PeerProcess(const std::string& fabric, std::size_t bytes)
    : process_("the other process",
               {"peer", "--fabric", fabric, "--bytes", std::to_string(bytes)}) {
  const nlohmann::json hello = process_.receive();
  endpoint_ = reachable(hello.at("endpoint"));
  raw_ = reachable(hello.at("raw"));
}

void PeerProcess::spin_raw(bool on) {
  process_.send({{"spin", on}});
  process_.receive();
}

void PeerProcess::echo_raw(const std::vector<std::byte>& address) {
  process_.send({{"echo", to_json(address)}});
  process_.receive();
}

int serve_as_peer(const std::string& fabric, std::size_t bytes) {
  Link link(adopt_socket());
  return guarded(link, [&] {
    const auto endpoint = transport::Endpoint::open({.fabric = fabric});
    const auto memory = value_or_throw(endpoint->allocate(bytes, transport::Access::kPeers));
    endpoint->start([](std::span<const std::byte>) {});
    RawFabric raw(fabric, bytes);
    link.send({{"endpoint", as_json({endpoint->info().address, memory.remote()->front()})},
               {"raw", as_json({raw.address(), raw.memory()})}});
    constexpr int kProgressPerLook = 256;
    bool spin = false;
    while (true) {
      for (int i = 0; spin && i < kProgressPerLook; ++i) raw.progress();
      pollfd look{.fd = link.descriptor(), .events = POLLIN, .revents = 0};
      if (poll(&look, 1, spin ? 0 : -1) <= 0) continue;
      if (!link.wait()) return;
      const nlohmann::json order = link.receive(kOrderDeadline);
      if (order.contains("echo")) raw.echo(bytes_of(order.at("echo")));
      spin = order.value("spin", spin);
      link.send({{"spin", spin}});
    }
  });
}

}  // namespace leeway::bench
