// Which NICs become rails, on recorded machines and on small ones made here.
#include <algorithm>

#include "common/result.h"
#include "tests/unit/transport/inventory_machines.h"
#include "transport/nic_choice.h"

namespace leeway::transport {
namespace {

using Names = std::vector<std::string>;

Names devices(const std::vector<RailPlan>& rails) {
  Names out;
  for (const RailPlan& rail : rails) out.push_back(rail.device);
  return out;
}

// The rails that are for the GPU asked for.
std::vector<RailPlan> near_rails(const Topology& topology, const RailRequest& request) {
  auto rails = choose_rails(topology, request);
  CHECK(rails.size() == choose_nics(topology, request).rails.size());
  for (const RailPlan& rail : rails) CHECK((rail.weight > 0) == rail.near);
  std::erase_if(rails, [](const RailPlan& rail) { return !rail.near; });
  return rails;
}

std::string reason(const NicChoice& choice, const std::string& name) {
  const auto it = std::find_if(choice.left_out.begin(), choice.left_out.end(),
                               [&](const LeftOut& out) { return out.name == name; });
  return it == choice.left_out.end() ? "" : it->reason;
}

std::string refusal(const Topology& topology, const RailRequest& request) {
  try {
    choose_rails(topology, request);
  } catch (const ConfigError& error) {
    const std::string what = error.what();
    CHECK(what.find('\n') == std::string::npos);
    return what;
  }
  return "";
}

bool has(const std::string& text, const std::string& part) {
  CAPTURE(text);
  CAPTURE(part);
  return text.find(part) != std::string::npos;
}

double sum_of_weights(const std::vector<RailPlan>& rails) {
  double sum = 0;
  for (const RailPlan& rail : rails) sum += rail.weight;
  return sum;
}

Nic hardware(const std::string& name, double rate, std::vector<std::string> bridges, int node) {
  return {.name = name,
          .driver = Family::kVerbs,
          .place = {"", std::move(bridges), node},
          .ports = {{.number = 1,
                     .state = PortState::kActive,
                     .link_layer = LinkLayer::kInfiniBand,
                     .rate_gbps = rate,
                     .netdev = "ib_" + name,
                     .addresses = {"10.0.0.1"}}}};
}

GpuInfo gpu(const std::string& address, std::vector<std::string> bridges, int node) {
  return {"10de:2330", {address, std::move(bridges), node}};
}

}  // namespace

TEST_CASE("a DGX-like host: the eight InfiniBand NICs are rails, storage and management are not") {
  const Topology dgx = recorded("dgx_like");
  const NicChoice choice = choose_nics(dgx, {});
  CHECK(choice.family == Family::kVerbs);
  CHECK(devices(choice.rails) ==
        Names{"mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11"});
  for (const RailPlan& rail : choice.rails) {
    CHECK(rail.weight == doctest::Approx(0.125));
    CHECK(rail.rate_gbps == 400);
    CHECK(rail.domain == rail.device);
  }
  CHECK(choice.rails[1].address == "10.1.1.17");
  CHECK(choice.rails[1].numa_node == 0);
  CHECK(choice.rails[7].numa_node == 1);
  CHECK(reason(choice, "mlx5_1") == "ethernet, and the rails are infiniband");
  CHECK(reason(choice, "mlx5_2") == "the port is down");
  CHECK(has(reason(choice, "eno3"), "reached by tcp only"));
  CHECK(reason(choice, "lo").empty());
  REQUIRE(choice.gpus.size() == 8);
  for (std::size_t i = 0; i < 8; ++i) {
    CHECK(choice.gpus[i].rails == std::vector<std::size_t>{i});
    CHECK(choice.gpus[i].distance == Distance::kSameSwitch);
  }
  const auto rails = near_rails(dgx, {.gpu = "00000000:C3:00.0"});
  REQUIRE(devices(rails) == Names{"mlx5_9"});
  CHECK(rails[0].weight == 1);
}

TEST_CASE("a DGX-like host with InfiniBand storage: a NIC without a GPU is left out") {
  Topology dgx = recorded("dgx_like");
  for (Nic& nic : dgx.nics)
    if (nic.name == "mlx5_1") {
      nic.ports[0].link_layer = LinkLayer::kInfiniBand;
      nic.ports[0].rate_gbps = 400;
    }
  const NicChoice choice = choose_nics(dgx, {.fabric = "verbs"});
  CHECK(choice.rails.size() == 8);
  CHECK(has(reason(choice, "mlx5_1"), "storage or management"));
  // Once one GPU has no NIC of its own, nothing can be told from that.
  dgx.gpus.push_back(gpu("0000:05:00.0", {"0000:04"}, 0));
  CHECK(choose_nics(dgx, {.fabric = "verbs"}).rails.size() == 9);
}

TEST_CASE("a p5-like host: 32 EFA rails, four near each GPU") {
  const Topology p5 = recorded("p5_like");
  const NicChoice choice = choose_nics(p5, {});
  CHECK(choice.family == Family::kEfa);
  REQUIRE(choice.rails.size() == 32);
  CHECK(choice.rails[0].device == "rdmap79s0");
  CHECK(choice.rails[0].domain == "rdmap79s0-rdm");
  CHECK(choice.rails[0].address.empty());
  CHECK(sum_of_weights(choice.rails) == doctest::Approx(1));
  for (std::size_t i = 0; i < 8; ++i)
    CHECK(choice.gpus[i].rails == std::vector<std::size_t>{4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3});
  const auto rails = near_rails(p5, {.fabric = "efa", .gpu = p5.gpus[7].place.address});
  CHECK(devices(rails) == Names{"rdmap198s0", "rdmap199s0", "rdmap200s0", "rdmap201s0"});
  CHECK(rails[0].weight == 0.25);
  CHECK(rails[0].numa_node == 1);
  CHECK(has(reason(choice, "ens32"), "reached by tcp only"));
}

TEST_CASE("a laptop: its wireless network, of unknown rate, by tcp") {
  const Topology laptop = recorded("laptop");
  const NicChoice choice = choose_nics(laptop, {});
  CHECK(choice.family == Family::kTcp);
  REQUIRE(devices(choice.rails) == Names{"wlp2s0"});
  CHECK(choice.rails[0].address == "192.168.1.23");
  CHECK(choice.rails[0].weight == 1);
  CHECK(reason(choice, "enp0s31f6") == "the port is down");
  CHECK(devices(choose_rails(laptop, {.devices = {"lo"}})) == Names{"lo"});
  CHECK(choose_rails(laptop, {.devices = {"fd12::23"}})[0].address == "fd12::23");
  CHECK(has(refusal(laptop, {.fabric = "verbs"}), "fabric verbs: no NIC here can be used"));
}

TEST_CASE("without a network, the loopback interface is what there is") {
  Topology alone = recorded("laptop");
  for (Nic& nic : alone.nics)
    if (nic.name != "lo") nic.ports[0].state = PortState::kDown;
  CHECK(devices(choose_rails(alone, {})) == Names{"lo"});
}

TEST_CASE("an uneven host: weights by rate; what is down, slow or without an address is out") {
  const Topology uneven = recorded("uneven");
  const NicChoice choice = choose_nics(uneven, {});
  REQUIRE(devices(choice.rails) == Names{"mlx5_0", "mlx5_1"});
  CHECK(choice.rails[0].weight == doctest::Approx(2.0 / 3));
  CHECK(choice.rails[1].weight == doctest::Approx(1.0 / 3));
  CHECK(choice.rails[1].numa_node == 1);
  CHECK(reason(choice, "mlx4_0/1") == "the port is down");
  CHECK(reason(choice, "mlx4_0/2") == "ens3d1 has no IP address, by which verbs finds its peers");
  CHECK(reason(choice, "mlx5_2") == "25 Gbit/s, and the fastest has 100");
  // Both GPUs have the fast NIC on their node and no other.
  for (const GpuRails& near : choice.gpus) {
    CHECK(near.distance == Distance::kSameNode);
    CHECK(near.rails == std::vector<std::size_t>{0});
  }
}

TEST_CASE(
    "devices that were named are the rails, whatever their rate; by NIC, interface or address") {
  const Topology uneven = recorded("uneven");
  CHECK(devices(choose_rails(uneven, {.devices = {"mlx5_2", "ens1"}})) ==
        Names{"mlx5_0", "mlx5_2"});
  CHECK(devices(choose_rails(uneven, {.fabric = "tcp", .devices = {"mlx5_2"}})) == Names{"ens4"});
  // One family for all of them.
  CHECK(devices(choose_rails(uneven, {.devices = {"eno1", "ens4"}})) == Names{"ens4", "eno1"});
  const auto rails = choose_rails(uneven, {.devices = {"10.0.9.5"}});
  REQUIRE(devices(rails) == Names{"mlx5_1"});
  CHECK(rails[0].address == "10.0.9.5");
}

TEST_CASE("a named device that cannot be had is an error that helps") {
  const Topology uneven = recorded("uneven");
  const std::string unknown = refusal(uneven, {.devices = {"mlx5_0", "mlx5_9"}});
  CHECK(has(unknown, "no device 'mlx5_9' on this machine (did you mean 'mlx5_0'?)"));
  CHECK(has(unknown, "it has mlx5_0, mlx5_1, mlx4_0/1, mlx4_0/2"));
  CHECK(has(refusal(uneven, {.fabric = "verbs", .devices = {"eno1"}}),
            "fabric verbs: device 'eno1' is driven by tcp"));
  CHECK(has(refusal(uneven, {.devices = {"mlx4_0/1"}}),
            "'mlx4_0/1' was asked for and cannot be used: the port is down"));
  CHECK(has(refusal(uneven, {.fabric = "shm"}), "fabric 'shm' has no NICs to choose from"));
  CHECK(has(refusal(uneven, {.gpu = "0000:3d:00.0"}),
            "no GPU 0000:3d:00.0 on this machine (did you mean '0000:3b:00.0'?)"));
  CHECK(has(refusal(uneven, {.devices = {"mlx5_0"}, .offered = std::vector{Family::kEfa}}),
            "libfabric offers no verbs here, which drives mlx5_0"));
}

TEST_CASE("auto passes over what libfabric does not offer, and says so") {
  const NicChoice choice =
      choose_nics(recorded("dgx_like"), {.offered = std::vector{Family::kTcp}});
  CHECK(choice.family == Family::kTcp);
  CHECK(reason(choice, "mlx5_0") == "libfabric offers no verbs here");
  CHECK(choice.rails.size() == 8);
  CHECK(choice.rails[0].device == "ibp24s0");
  CHECK(choice.rails[0].domain == "ibp24s0");
  CHECK(
      has(refusal(recorded("dgx_like"), {.fabric = "verbs", .offered = std::vector{Family::kTcp}}),
          "mlx5_0: libfabric offers no verbs here"));
}

TEST_CASE(
    "when all ports of the better family are down, the next one is taken and the reason kept") {
  Topology dgx = recorded("dgx_like");
  for (Nic& nic : dgx.nics)
    if (nic.driver == Family::kVerbs) nic.ports[0].state = PortState::kDown;
  const NicChoice choice = choose_nics(dgx, {});
  CHECK(devices(choice.rails) == Names{"eno3"});
  CHECK(reason(choice, "mlx5_0") == "the port is down");
  CHECK(has(refusal(dgx, {.fabric = "verbs"}), "mlx5_0: the port is down; mlx5_1: "));
}

TEST_CASE("Soft-RoCE is virtual but serves where there is nothing else for verbs") {
  const Topology vm = recorded("soft_roce");
  const auto rails = choose_rails(vm, {.fabric = "verbs"});
  REQUIRE(devices(rails) == Names{"rxe0"});
  CHECK(rails[0].address == "10.0.2.15");
  CHECK(rails[0].numa_node == kNoNode);
  CHECK(devices(choose_rails(vm, {.fabric = "tcp"})) == Names{"eth0"});
}

TEST_CASE("of several virtual interfaces one is taken: which lead to peers cannot be seen") {
  Topology container;
  for (const char* name : {"eth0", "eth1"})
    container.nics.push_back({.name = name,
                              .driver = Family::kTcp,
                              .attachment = Attachment::kVirtual,
                              .ports = {{.state = PortState::kActive,
                                         .rate_gbps = 10,
                                         .netdev = name,
                                         .addresses = {"172.17.0.2"}}}});
  const NicChoice choice = choose_nics(container, {});
  CHECK(devices(choice.rails) == Names{"eth0"});
  CHECK(has(reason(choice, "eth1"), "name it to use it"));
}

TEST_CASE("GPUs with the same NICs at the same distance share these out") {
  Topology machine;
  const std::vector<std::string> above = {"0000:15", "0000:15:01.0"};
  for (const char* name : {"mlx5_0", "mlx5_1"})
    machine.nics.push_back(hardware(name, 200, above, 0));
  for (const char* at : {"0000:1a:00.0", "0000:1b:00.0"}) machine.gpus.push_back(gpu(at, above, 0));
  CHECK(devices(near_rails(machine, {.gpu = "0000:1a:00.0"})) == Names{"mlx5_0"});
  CHECK(devices(near_rails(machine, {.gpu = "0000:1b:00.0"})) == Names{"mlx5_1"});

  // Four GPUs over the same two: two each.
  for (const char* at : {"0000:1c:00.0", "0000:1d:00.0"}) machine.gpus.push_back(gpu(at, above, 0));
  Names taken;
  for (const GpuInfo& each : machine.gpus)
    for (const auto& device : devices(near_rails(machine, {.gpu = each.place.address})))
      taken.push_back(device);
  CHECK(taken == Names{"mlx5_0", "mlx5_0", "mlx5_1", "mlx5_1"});
}

TEST_CASE("a tie between NUMA nodes: each GPU keeps to its own; one without a node shares in all") {
  Topology machine;
  machine.numa_nodes = {{0}, {1}};
  machine.nics = {hardware("mlx5_0", 100, {"0000:15"}, 0), hardware("mlx5_1", 100, {"0000:97"}, 1)};
  machine.gpus = {gpu("0000:a0:00.0", {"0000:a0"}, 1), gpu("0000:20:00.0", {"0000:20"}, 0),
                  gpu("0000:e0:00.0", {}, kNoNode)};
  const NicChoice choice = choose_nics(machine, {});
  CHECK(choice.gpus[0].rails == std::vector<std::size_t>{1});
  CHECK(choice.gpus[1].rails == std::vector<std::size_t>{0});
  CHECK(choice.gpus[2].rails == std::vector<std::size_t>{0, 1});
  CHECK(choice.gpus[2].distance == Distance::kOtherNode);
}

TEST_CASE("a rate that is not known keeps a NIC out only where others are known") {
  Topology machine;
  machine.nics = {hardware("mlx5_0", 0, {}, 0), hardware("mlx5_1", 0, {}, 0)};
  const auto rails = choose_rails(machine, {});
  REQUIRE(rails.size() == 2);
  CHECK(rails[0].weight == 0.5);
  machine.nics[1].ports[0].rate_gbps = 100;
  const NicChoice choice = choose_nics(machine, {});
  CHECK(devices(choice.rails) == Names{"mlx5_1"});
  CHECK(has(reason(choice, "mlx5_0"), "rate is not known"));
}

TEST_CASE("a machine without any NIC is told so") {
  CHECK(refusal(Topology{}, {}) == "fabric auto: no NIC here can be used");
}

TEST_CASE("which GPU a process computes on: LOCAL_RANK among the visible ones") {
  const Topology dgx = recorded("dgx_like");
  const auto address = [&](std::size_t i) { return dgx.gpus[i].place.address; };
  CHECK(local_gpu(dgx, "5", nullptr) == address(5));
  CHECK(local_gpu(dgx, "13", nullptr) == address(5));  // more processes than GPUs
  CHECK(local_gpu(dgx, nullptr, "3") == address(3));
  CHECK(local_gpu(dgx, "5", "3") == address(3));  // the launcher gave each process one
  CHECK(local_gpu(dgx, "1", "6,2,7") == address(2));
  CHECK(local_gpu(dgx, "1", "6,-1,7") == address(6));
  CHECK_FALSE(local_gpu(dgx, nullptr, nullptr));
  CHECK_FALSE(local_gpu(dgx, "0", ""));
  CHECK_FALSE(local_gpu(dgx, "0", "-1"));
  CHECK_FALSE(local_gpu(dgx, "0", "GPU-8932f937-d72c"));
  CHECK_FALSE(local_gpu(dgx, "0", "8"));
  CHECK_FALSE(local_gpu(dgx, "zero", nullptr));
  CHECK_FALSE(local_gpu(recorded("laptop"), "0", nullptr));
}

TEST_CASE(
    "addresses of sockets are rails in their order, with the rate of their NIC, near the GPU") {
  const Topology uneven = recorded("uneven");
  const auto rails = plan_addresses(uneven, {"10.0.9.5", "10.0.0.5", "127.0.0.2"}, std::nullopt);
  REQUIRE(rails.size() == 3);
  CHECK(rails[0].address == "10.0.9.5");
  CHECK(rails[2].address == "127.0.0.2");
  CHECK(rails[0].rate_gbps == 50);
  CHECK(rails[1].rate_gbps == 100);
  CHECK(rails[2].rate_gbps == 0);
  CHECK(sum_of_weights(rails) == doctest::Approx(1));

  const Topology dgx = recorded("dgx_like");
  Names addresses;
  for (const RailPlan& rail : choose_nics(dgx, {}).rails) addresses.push_back(rail.address);
  std::ranges::reverse(addresses);
  for (std::size_t i = 0; i < dgx.gpus.size(); ++i) {
    const auto near = plan_addresses(dgx, addresses, dgx.gpus[i].place.address);
    for (std::size_t j = 0; j < near.size(); ++j) {
      CHECK(near[j].near == (i + j == 7));
      CHECK(near[j].rate_gbps == 400);
    }
  }
  // One of them is on no NIC: what is near cannot be told.
  addresses.emplace_back("127.0.0.2");
  for (const RailPlan& rail : plan_addresses(dgx, addresses, dgx.gpus[0].place.address))
    CHECK(rail.near);
}

TEST_CASE("tcp: a stream for each 5 Gbit/s of a NIC, and not too many in all") {
  CHECK(tcp_streams(0, 1) == 1);  // loopback, or nobody said
  CHECK(tcp_streams(1, 1) == 1);
  CHECK(tcp_streams(5, 1) == 1);
  CHECK(tcp_streams(10, 1) == 2);
  CHECK(tcp_streams(25, 1) == 5);
  CHECK(tcp_streams(400, 1) == 8);
  CHECK(tcp_streams(1e300, 1) == 8);
  CHECK(tcp_streams(100, 8) == 4);
  CHECK(tcp_streams(100, 64) == 1);
}

TEST_CASE("tcp: the streams of several NICs come in turns, as many for each") {
  // Processes pair their rails by number, whatever the rates of the other one are.
  for (const std::vector<double>& rates :
       {std::vector<double>{1, 1}, {25, 25}, {25, 5}, {5, 25, 10}, {0, 0}}) {
    std::vector<RailPlan> nics;
    for (const double rate : rates) {
      nics.emplace_back().address = std::to_string(nics.size());
      nics.back().rate_gbps = rate;
    }
    const std::vector<RailPlan> streams = plan_streams(nics);
    const auto most = tcp_streams(*std::max_element(rates.begin(), rates.end()), rates.size());
    REQUIRE(streams.size() == nics.size() * most);
    for (std::size_t i = 0; i < streams.size(); ++i) {
      const RailPlan& nic = nics[i % nics.size()];
      CHECK(streams[i].address == nic.address);
      CHECK(streams[i].rate_gbps == nic.rate_gbps / static_cast<double>(most));
    }
  }
}

}  // namespace leeway::transport
