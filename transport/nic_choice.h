// Which NICs a process uses as rails, with which weight, and which of them are near to which GPU.
// A core without I/O: the machine comes in as a Topology.
//
// Called while starting, from one thread. What is asked for and is not there throws ConfigError
// (one line, with the nearest name); another family is never taken in its place.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "transport/topology.h"

namespace leeway::transport {

struct RailRequest {
  std::string fabric = "auto";  // auto | efa | verbs | tcp
  // NICs, network interfaces or IP addresses; when there are any, these and no others are used.
  std::vector<std::string> devices;
  std::optional<std::string> gpu;  // PCI address of the one that the process computes on
  // The families that there is a way to here; `auto` passes over the others. Nothing: not asked.
  std::optional<std::vector<Family>> offered;
};

// One endpoint to open.
struct RailPlan {
  Family family = Family::kTcp;
  std::string device;    // the NIC's name in the inventory: "mlx5_0", "rdmap16s27", "eth0"
  std::string domain;    // libfabric's name for it: "mlx5_0", "rdmap16s27-rdm", "eth0"
  std::string address;   // IP to bind to; empty where the family has its own addresses (efa)
  double rate_gbps = 0;  // 0: not known
  double weight = 1;     // its share of the bytes; the weights of one answer sum to 1
  int numa_node = kNoNode;
  // Meant for the GPU asked for, if one was. The others have no weight: they are for when all of
  // those have failed.
  bool near = true;
};

struct LeftOut {
  std::string name;  // NIC or, where a NIC has several, NIC and port: "mlx5_0/2"
  std::string reason;
};

struct GpuRails {
  std::string gpu;  // PCI address
  Distance distance = Distance::kOtherNode;
  std::vector<std::size_t> rails;  // of NicChoice::rails; GPUs at equal distance share them out
};

struct NicChoice {
  Family family = Family::kTcp;
  std::vector<RailPlan> rails;  // in the topology's order: the same on all machines of one kind
  std::vector<LeftOut> left_out;
  std::vector<GpuRails> gpus;  // in the topology's order
};

// Ports of one family and one link layer become rails, all of them but those that are down, have
// no address where one is needed, belong to another network (when every GPU has a NIC of its own
// on its PCIe switch, NICs without a GPU are for storage or management) or have less than half of
// the fastest one's rate: striping over these costs more than it brings.
NicChoice choose_nics(const Topology& topology, const RailRequest& request);

// The rails alone, with those near the GPU asked for marked.
std::vector<RailPlan> choose_rails(const Topology& topology, const RailRequest& request);

// A rail of tcp for each of these addresses, in their order: any address, with what is known of the
// NIC that it is on, and near `gpu` where all of them are on NICs.
std::vector<RailPlan> plan_addresses(const Topology& topology,
                                     const std::vector<std::string>& addresses,
                                     const std::optional<std::string>& gpu);

// How many connections of TCP to a peer, each a rail, are as fast as a NIC of this rate (0: not
// known), with so many NICs in use: cloud networks limit one flow to 5 Gbit/s, and one core moves
// not much more.
std::size_t tcp_streams(double rate_gbps, std::size_t nics);

// A rail of tcp for each connection: on every NIC as many as the fastest one needs, in turns, so
// that rails of two processes that meet by their numbers are on NICs of one number, whatever the
// rates.
std::vector<RailPlan> plan_streams(const std::vector<RailPlan>& nics);

// The PCI address of the GPU that a process computes on, from LOCAL_RANK and CUDA_VISIBLE_DEVICES
// as they are in its environment: number LOCAL_RANK of the visible ones, going round, GPUs numbered
// by PCI address (what CUDA does with CUDA_DEVICE_ORDER=PCI_BUS_ID, and with equal GPUs in any
// case). Nothing when neither is set, no GPU is visible, or it is named by its UUID.
std::optional<std::string> local_gpu(const Topology& topology, const char* local_rank,
                                     const char* visible_devices);

}  // namespace leeway::transport
