// Distances, and recorded topologies as text: what comes back, what is refused and how it is said.
#include <fmt/format.h>

#include <random>

#include "common/result.h"
#include "tests/unit/transport/inventory_machines.h"

namespace leeway::transport {
namespace {

std::string refusal(const std::string& text) {
  try {
    parse_topology(text, "m.topology");
  } catch (const ConfigError& error) {
    const std::string what = error.what();
    CHECK(what.find('\n') == std::string::npos);
    return what;
  }
  return "";
}

std::string after_head(const std::string& lines) { return "leeway-topology 1\nnode 0\n" + lines; }

}  // namespace

TEST_CASE("distance on PCI goes by the bridges that two devices share, then by NUMA node") {
  const PciPlace gpu{"0000:1b:00.0", {"0000:15", "0000:15:01.0", "0000:1a:04.0"}, 0};
  CHECK(distance(gpu, {"", {"0000:15", "0000:15:01.0", "0000:17:00.0"}, 0}) ==
        Distance::kSameSwitch);
  CHECK(distance(gpu, {"", {"0000:15", "0000:15:02.0"}, 0}) == Distance::kSameHostBridge);
  CHECK(distance(gpu, {"", {"0000:28", "0000:15:01.0"}, 0}) == Distance::kSameNode);
  CHECK(distance(gpu, {"", {"0000:97"}, 1}) == Distance::kOtherNode);
  CHECK(distance({"", {}, kNoNode}, {"", {}, kNoNode}) == Distance::kOtherNode);
}

TEST_CASE("PCI addresses are compared in one spelling") {
  CHECK(normal_pci_address("00000000:1B:00.0") == "0000:1b:00.0");
  CHECK(normal_pci_address("0000:1b:00.0") == "0000:1b:00.0");
  CHECK(normal_pci_address("1B:00.0") == "0000:1b:00.0");
  CHECK(normal_pci_address("00010000:1B:00.0") == "10000:1b:00.0");
  CHECK(normal_pci_address("") == "0000:");
}

TEST_CASE("recorded machines are read, and written back as they were") {
  for (const char* name : {"dgx_like", "p5_like", "laptop", "uneven", "soft_roce"}) {
    CAPTURE(name);
    const Topology topology = recorded(name);
    CHECK(!topology.nics.empty());
    CHECK(parse_topology(print_topology(topology), name) == topology);
  }
  const Topology dgx = recorded("dgx_like");
  REQUIRE(dgx.nics.size() == 15);
  CHECK(dgx.numa_nodes == std::vector<NumaNode>{{0, "0-55,112-167"}, {1, "56-111,168-223"}});
  CHECK(dgx.gpus.size() == 8);
  CHECK(dgx.gpus[7].model == "10de:2330");
  CHECK(dgx.gpus[7].place.numa_node == 1);
  const Nic& nic = dgx.nics[0];
  CHECK(nic.name == "mlx5_0");
  CHECK(nic.driver == Family::kVerbs);
  CHECK(nic.place.address == "0000:18:00.0");
  CHECK(distance(nic.place, dgx.gpus[0].place) == Distance::kSameSwitch);
  REQUIRE(nic.ports.size() == 1);
  CHECK(nic.ports[0].rate_gbps == 400);
  CHECK(nic.ports[0].link_layer == LinkLayer::kInfiniBand);
  CHECK(nic.ports[0].addresses.size() == 2);
}

TEST_CASE("what is wrong in a recorded topology is said with file and line") {
  CHECK(refusal("").find("m.topology:1: a recorded topology begins with") == 0);
  CHECK(refusal("leeway-topology 2\n").find("m.topology:1: ") == 0);
  CHECK(refusal(after_head("nick mlx5_0\n")) ==
        "m.topology:3: 'nick' is none of node, gpu, nic, port");
  CHECK(refusal(after_head("\n# comment\nnic\n")) == "m.topology:5: nic needs a name or number");
  CHECK(refusal(after_head("nic a drivr=tcp\n")).find("(did you mean 'driver'?)") !=
        std::string::npos);
  CHECK(refusal(after_head("nic a driver\n")).find("'driver' should be KEY=VALUE") !=
        std::string::npos);
  CHECK(refusal(after_head("nic a\n")).find("driver=efa|verbs|tcp is missing") !=
        std::string::npos);
  CHECK(
      refusal(after_head("nic a driver=roce\n")).find("driver = 'roce' should be efa|verbs|tcp") !=
      std::string::npos);
  CHECK(refusal(after_head("nic a driver=tcp driver=efa\n")).find("said twice") !=
        std::string::npos);
  CHECK(refusal(after_head("nic a driver=tcp\nnic a driver=tcp\n")) ==
        "m.topology:4: nic a is listed twice");
  CHECK(refusal(after_head("nic a driver=tcp node=1\n")).find("node 1 is not listed above") !=
        std::string::npos);
  CHECK(refusal(after_head("port 1 state=active link=efa\n")).find("a port comes after its nic") !=
        std::string::npos);
  const std::string nic = after_head("nic a driver=tcp\n");
  CHECK(refusal(nic + "port 1 state=up link=efa\n").find("state = 'up' should be active|down") !=
        std::string::npos);
  CHECK(refusal(nic + "port x state=down link=efa\n").find("should be a number from 0 to 4095") !=
        std::string::npos);
  for (const char* rate : {"-1", "nan", "inf", "1e9", "4x", ""})
    CHECK(!refusal(nic + fmt::format("port 1 state=active link=efa rate={}\n", rate)).empty());
  CHECK(refusal(nic + "port 1 state=active link=efa addresses=10.0.0.1,10.0.0.256\n") ==
        "m.topology:4: '10.0.0.256' is no IP address");
  CHECK(refusal(nic + "port 1 state=down link=efa\nport 1 state=down link=efa\n") ==
        "m.topology:5: port 1 of a is listed twice");
  CHECK(refusal(after_head("node 1 cpus=3-2\n")) ==
        "m.topology:3: cpus should be numbers and ranges, ascending, such as 0-47,96-143");
  CHECK(refusal(after_head("node 0\n")) == "m.topology:3: node 0 is listed twice");
  CHECK(refusal(after_head("gpu 1b:00.0\ngpu 0000:1B:00.0\n")) ==
        "m.topology:4: gpu 0000:1b:00.0 is listed twice");
}

TEST_CASE("a recorded topology cannot bloat the process") {
  CHECK(refusal(std::string(2 << 20, '#')).find("longer than 1048576 bytes") != std::string::npos);
  CHECK(refusal(after_head("nic " + std::string(65, 'a') + " driver=tcp\n"))
            .find("up to 64 letters") != std::string::npos);
  std::string nics = "leeway-topology 1\n";
  for (int i = 0; i < 1025; ++i) nics += fmt::format("nic n{} driver=tcp\n", i);
  CHECK(refusal(nics) == "m.topology:1026: over 1024 NICs");
  std::string bridges = "gpu 1b:00.0 bridges=";
  for (int i = 0; i < 33; ++i) bridges += "0000:15/";
  CHECK(refusal(after_head(bridges)) == "m.topology:3: over 32 bridges");
}

TEST_CASE("spoilt recordings are refused in one line or read, never more") {
  const std::string good = recorded_text("uneven");
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    std::string text = good;
    for (int change = 0; change < 3; ++change) {
      const std::size_t at = random() % text.size();
      if (random() % 2 == 0)
        text[at] = static_cast<char>(random());
      else
        text.erase(at, random() % 40);
    }
    CAPTURE(round);
    try {
      const Topology topology = parse_topology(text, "m");
      CHECK(parse_topology(print_topology(topology), "m") == topology);
    } catch (const ConfigError& error) {
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
    }
  }
}

}  // namespace leeway::transport
