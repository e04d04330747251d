// What a machine has for moving bytes: NUMA nodes, NICs with their ports, GPUs, and how far these
// lie from each other on PCI. Read live by transport/inventory.h, or from a recorded file by
// transport/topology_file.h; the choice of NICs (transport/nic_choice.h) sees only this.
//
// Plain values: no I/O, no thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace leeway::transport {

// Which family of fabrics drives a NIC; best first.
enum class Family : std::uint8_t { kEfa, kVerbs, kTcp };
enum class PortState : std::uint8_t { kActive, kDown };
enum class LinkLayer : std::uint8_t { kInfiniBand, kEthernet, kEfa };
// What is behind a NIC. Soft-RoCE, bridges and tunnels are virtual; a bond or VLAN of a hardware
// NIC counts as hardware.
enum class Attachment : std::uint8_t { kHardware, kVirtual, kLoopback };

std::string_view to_string(Family family) noexcept;
std::string_view to_string(PortState state) noexcept;
std::string_view to_string(LinkLayer layer) noexcept;
std::string_view to_string(Attachment attachment) noexcept;

inline constexpr int kNoNode = -1;  // the machine did not say

// Where a device sits: its address and the bridges above it, host bridge first. Two devices of one
// PCIe switch share at least the host bridge and the switch's port; two root ports of one host
// bridge share the host bridge alone.
struct PciPlace {
  std::string address;  // "0000:18:00.0", lower case; empty: not on PCI
  std::vector<std::string> bridges;
  int numa_node = kNoNode;
  friend bool operator==(const PciPlace&, const PciPlace&) = default;
};

struct Port {
  int number = 1;
  PortState state = PortState::kDown;
  LinkLayer link_layer = LinkLayer::kEthernet;
  double rate_gbps = 0;                // 0: the machine did not say
  std::string netdev;                  // the network interface on it, where there is one
  std::vector<std::string> addresses;  // IP, numeric, of that interface
  friend bool operator==(const Port&, const Port&) = default;
};

struct Nic {
  std::string name;  // mlx5_0, rdmap16s27, rxe0, eth0
  Family driver = Family::kTcp;
  Attachment attachment = Attachment::kHardware;
  PciPlace place;
  std::vector<Port> ports;
  friend bool operator==(const Nic&, const Nic&) = default;
};

struct GpuInfo {
  std::string model;  // PCI vendor and device, "10de:2330"
  PciPlace place;
  friend bool operator==(const GpuInfo&, const GpuInfo&) = default;
};

struct NumaNode {
  int number = 0;
  std::string cpus;  // "0-47,96-143"; empty: it has none, or they are not known
  friend bool operator==(const NumaNode&, const NumaNode&) = default;
};

struct Topology {
  std::vector<NumaNode> numa_nodes;
  std::vector<Nic> nics;
  std::vector<GpuInfo> gpus;
  friend bool operator==(const Topology&, const Topology&) = default;
};

// Numbers and ranges of numbers, with commas, ascending.
bool is_cpu_list(std::string_view text) noexcept;

// Nearest first.
enum class Distance : std::uint8_t { kSameSwitch, kSameHostBridge, kSameNode, kOtherNode };
std::string_view to_string(Distance distance) noexcept;

// Devices whose node is not known count as on another one.
Distance distance(const PciPlace& a, const PciPlace& b) noexcept;

// "00000000:1B:00.0", as the NVIDIA tools print it, and "0000:1b:00.0" are the same device.
std::string normal_pci_address(std::string_view text);

}  // namespace leeway::transport
