// The readers of this machine, given file trees and lists as other machines have them.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/unit/transport/inventory_machines.h"
#include "transport/inventory.h"
#include "transport/inventory_netdevs.h"
#include "transport/inventory_verbs.h"

namespace leeway::transport {
namespace {

namespace fs = std::filesystem;

// A tree like /sys, gone when the test is over.
class FakeSysfs {
 public:
  FakeSysfs() {
    std::string pattern = (fs::temp_directory_path() / "leeway-sysfs.XXXXXX").string();
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    root_ = pattern;
  }
  ~FakeSysfs() {
    std::error_code error;
    fs::remove_all(root_, error);
  }
  FakeSysfs(const FakeSysfs&) = delete;
  FakeSysfs& operator=(const FakeSysfs&) = delete;

  const fs::path& root() const noexcept { return root_; }
  void file(const std::string& name, const std::string& text) const {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text << "\n";
  }
  void folder(const std::string& name) const { fs::create_directories(root_ / name); }
  // `name` points at `target`, both under the root.
  void link(const std::string& name, const std::string& target) const {
    fs::create_directories(root_ / target);
    fs::create_directories((root_ / name).parent_path());
    fs::create_directory_symlink(root_ / target, root_ / name);
  }

 private:
  fs::path root_;
};

}  // namespace

TEST_CASE("network interfaces: hardware by itself or by what it is stacked on, rate, PCI address") {
  const FakeSysfs sys;
  sys.link("class/net/ens1/device", "devices/pci0000:17/0000:17:00.0/0000:18:00.0");
  sys.file("class/net/ens1/speed", "100000");
  sys.link("class/net/eth0/device", "devices/pci0000:00/0000:00:03.0/virtio1");
  sys.file("class/net/eth0/speed", "-1");
  sys.link("class/net/bond0/lower_ens1", "class/net/ens1");
  sys.file("class/net/bond0/speed", "200000");
  sys.link("class/net/vlan5/lower_bond0", "class/net/bond0");
  sys.file("class/net/vlan5/speed", "4294967295");
  sys.link("class/net/docker0/lower_veth1", "class/net/veth1");
  sys.link("class/net/veth1/lower_docker0", "class/net/docker0");  // a ring ends
  const auto nics = read_netdevs({{.name = "ens1", .running = true, .addresses = {"10.0.0.5"}},
                                  {.name = "eth0"},
                                  {.name = "bond0", .running = true},
                                  {.name = "vlan5"},
                                  {.name = "docker0"},
                                  {.name = "lo", .loopback = true},
                                  {.name = "ib0", .infiniband = true}},
                                 sys.root());
  REQUIRE(nics.size() == 7);
  CHECK(nics[0].attachment == Attachment::kHardware);
  CHECK(nics[0].place.address == "0000:18:00.0");
  CHECK(nics[0].ports[0].state == PortState::kActive);
  CHECK(nics[0].ports[0].rate_gbps == 100);
  CHECK(nics[0].ports[0].addresses == std::vector<std::string>{"10.0.0.5"});
  CHECK(nics[1].place.address == "0000:00:03.0");
  CHECK(nics[1].ports[0].rate_gbps == 0);
  CHECK(nics[1].ports[0].state == PortState::kDown);
  CHECK(nics[2].attachment == Attachment::kHardware);
  CHECK(nics[2].place.address.empty());
  CHECK(nics[3].attachment == Attachment::kHardware);
  CHECK(nics[3].ports[0].rate_gbps == 0);
  CHECK(nics[4].attachment == Attachment::kVirtual);
  CHECK(nics[5].attachment == Attachment::kLoopback);
  CHECK(nics[6].ports[0].link_layer == LinkLayer::kInfiniBand);
}

TEST_CASE("RDMA devices: driver, rate, and which interface is on which port") {
  const FakeSysfs sys;
  // Two InfiniBand ports of one device.
  sys.link("class/infiniband/mlx4_0/device", "devices/pci0000:17/0000:18:00.0");
  sys.file("devices/pci0000:17/0000:18:00.0/net/ib0/dev_port", "0");
  sys.file("devices/pci0000:17/0000:18:00.0/net/ib1/dev_port", "1");
  sys.file("class/infiniband/mlx4_0/ports/2/rate", "56 Gb/sec (4X FDR)");
  // RoCE over a bond.
  sys.link("class/infiniband/mlx5_bond_0/device", "devices/pci0000:17/0000:19:00.0");
  sys.file("devices/pci0000:17/0000:19:00.0/net/ens1f0/dev_port", "0");
  sys.file("class/infiniband/mlx5_bond_0/ports/1/gid_attrs/ndevs/0", "bond0");
  sys.file("class/infiniband/mlx5_bond_0/ports/1/rate", "100 Gb/sec (4X EDR)");
  sys.link("class/infiniband/rdmap16s27/device", "devices/pci0000:10/0000:10:1b.0");
  sys.link("devices/pci0000:10/0000:10:1b.0/driver", "bus/pci/drivers/efa");
  sys.file("class/infiniband/rxe0/parent", "eth0");
  const auto nics = read_rdma_nics({{"mlx4_0", {{1, false, false}, {2, true, false}}},
                                    {"mlx5_bond_0", {{1, true, true}}},
                                    {"rdmap16s27", {{1, true, false}}},
                                    {"rxe0", {{1, true, true}}},
                                    {"broken", {}}},
                                   sys.root());
  REQUIRE(nics.size() == 5);
  CHECK(nics[0].driver == Family::kVerbs);
  CHECK(nics[0].place.address == "0000:18:00.0");
  CHECK(nics[0].ports[0].netdev == "ib0");
  CHECK(nics[0].ports[0].state == PortState::kDown);
  CHECK(nics[0].ports[0].link_layer == LinkLayer::kInfiniBand);
  CHECK(nics[0].ports[1].netdev == "ib1");
  CHECK(nics[0].ports[1].rate_gbps == 56);
  CHECK(nics[1].ports[0].netdev == "bond0");
  CHECK(nics[1].ports[0].link_layer == LinkLayer::kEthernet);
  CHECK(nics[1].ports[0].rate_gbps == 100);
  CHECK(nics[2].driver == Family::kEfa);
  CHECK(nics[2].ports[0].link_layer == LinkLayer::kEfa);
  CHECK(nics[2].ports[0].netdev.empty());
  CHECK(nics[3].attachment == Attachment::kVirtual);
  CHECK(nics[3].ports[0].netdev == "eth0");
  CHECK(nics[4].ports.empty());
}

TEST_CASE("hwloc's view: GPUs for computing, bridges from the host down, NUMA nodes") {
  const std::string file = std::string(LEEWAY_TOPOLOGIES) + "/two_sockets.xml";
  ::setenv("HWLOC_XMLFILE", file.c_str(), 1);
  const PciInventory pci = read_pci();
  ::unsetenv("HWLOC_XMLFILE");
  CHECK(pci.numa_nodes == std::vector<NumaNode>{{0, "0"}, {1, "1"}});
  REQUIRE(pci.gpus.size() == 1);  // not the console's VGA
  const GpuInfo& gpu = pci.gpus[0];
  CHECK(gpu.model == "10de:2330");
  CHECK(gpu.place.address == "0000:1b:00.0");
  CHECK(gpu.place.numa_node == 0);
  CHECK(gpu.place.bridges == std::vector<std::string>{"0000:15", "0000:15:01.0", "0000:17:04.0"});
  REQUIRE(pci.places.contains("0000:18:00.0"));
  CHECK(distance(gpu.place, pci.places.at("0000:18:00.0")) == Distance::kSameSwitch);
  REQUIRE(pci.places.contains("0000:97:00.0"));
  CHECK(pci.places.at("0000:97:00.0").numa_node == 1);
}

TEST_CASE("the lists become one: addresses to RDMA ports, each interface once, natural order") {
  const auto netdev = [](const char* name, const char* address) {
    return Nic{.name = name, .ports = {{.netdev = name, .addresses = {address}}}};
  };
  const auto rdma = [](const char* name, const char* on, Attachment attachment) {
    return Nic{.name = name,
               .driver = Family::kVerbs,
               .attachment = attachment,
               .place = {.address = name == std::string("mlx5_2") ? "0000:18:00.0" : ""},
               .ports = {{.netdev = on}}};
  };
  PciInventory pci;
  pci.places["0000:18:00.0"] = {"0000:18:00.0", {"0000:15"}, 1};
  const Topology all = join_inventory(
      pci,
      {rdma("rxe0", "eth0", Attachment::kVirtual), rdma("mlx5_10", "", Attachment::kHardware),
       rdma("mlx5_2", "ib0", Attachment::kHardware)},
      {netdev("lo", "127.0.0.1"), netdev("ib0", "10.0.0.1"), netdev("eth0", "10.0.2.15")});
  std::vector<std::string> names;
  for (const Nic& nic : all.nics) names.push_back(nic.name);
  CHECK(names == std::vector<std::string>{"mlx5_2", "mlx5_10", "rxe0", "eth0", "lo"});
  CHECK(all.nics[0].ports[0].addresses == std::vector<std::string>{"10.0.0.1"});
  CHECK(all.nics[0].place.numa_node == 1);
  CHECK(all.nics[2].ports[0].addresses == std::vector<std::string>{"10.0.2.15"});
}

TEST_CASE("this machine can be read, recorded and read back") {
  const Topology here = read_topology();
  const bool loopback = std::any_of(here.nics.begin(), here.nics.end(), [](const Nic& nic) {
    return nic.attachment == Attachment::kLoopback;
  });
  CHECK(loopback);
  CHECK(parse_topology(print_topology(here), "here") == here);
}

}  // namespace leeway::transport
