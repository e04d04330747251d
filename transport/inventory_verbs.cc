#include "transport/inventory_verbs.h"

#include <fmt/format.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "transport/inventory_netdevs.h"

namespace leeway::transport {
namespace {

namespace fs = std::filesystem;

// "400 Gb/sec (4X NDR)"
double rate_gbps(const fs::path& port) {
  const std::string text = read_line(port / "rate");
  double rate = 0;
  std::from_chars(text.data(), text.data() + text.size(), rate);
  return rate > 0 && rate < 100e3 ? rate : 0;
}

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> out;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    out.push_back(it->path());
  std::sort(out.begin(), out.end());
  return out;
}

// RoCE ports have their interface with their GIDs, which also knows bonds; InfiniBand's lies below
// the PCI device and counts ports from 0; Soft-RoCE names it itself.
std::string netdev_of(const fs::path& device, int port) {
  for (const fs::path& entry : entries(device / fmt::format("ports/{}/gid_attrs/ndevs", port)))
    if (std::string name = read_line(entry); !name.empty()) return name;
  for (const fs::path& entry : entries(device / "device/net"))
    if (const std::string number = read_line(entry / "dev_port");
        number.empty() || number == std::to_string(port - 1))
      return entry.filename().string();
  return read_line(device / "parent");
}

bool driven_by_efa(const fs::path& device) {
  std::error_code error;
  return fs::read_symlink(device / "device/driver", error).filename() == "efa";
}

}  // namespace

std::vector<RdmaDevice> list_rdma_devices() {
  std::vector<RdmaDevice> out;
  int count = 0;
  const std::unique_ptr<ibv_device*, void (*)(ibv_device**)> list(ibv_get_device_list(&count),
                                                                  [](ibv_device** p) {
                                                                    if (p != nullptr)
                                                                      ibv_free_device_list(p);
                                                                  });
  for (int i = 0; list && i < count; ++i) {
    ibv_device* device = list.get()[i];
    RdmaDevice& found = out.emplace_back(RdmaDevice{.name = ibv_get_device_name(device)});
    const std::unique_ptr<ibv_context, int (*)(ibv_context*)> context(ibv_open_device(device),
                                                                      ibv_close_device);
    ibv_device_attr attributes{};
    if (!context || ibv_query_device(context.get(), &attributes) != 0) continue;
    for (int number = 1; number <= attributes.phys_port_cnt; ++number) {
      ibv_port_attr port{};
      if (ibv_query_port(context.get(), static_cast<std::uint8_t>(number), &port) != 0) continue;
      found.ports.push_back({.number = number,
                             .active = port.state == IBV_PORT_ACTIVE,
                             .ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET});
    }
  }
  return out;
}

std::vector<Nic> read_rdma_nics(const std::vector<RdmaDevice>& devices, const fs::path& sysfs) {
  std::vector<Nic> out;
  for (const RdmaDevice& found : devices) {
    const fs::path device = sysfs / "class/infiniband" / found.name;
    const bool efa = driven_by_efa(device);
    std::error_code error;
    Nic nic{.name = found.name,
            .driver = efa ? Family::kEfa : Family::kVerbs,
            .attachment =
                fs::exists(device / "device", error) ? Attachment::kHardware : Attachment::kVirtual,
            .place = {.address = pci_address_of(device / "device")}};
    for (const RdmaPort& port : found.ports)
      nic.ports.push_back({.number = port.number,
                           .state = port.active ? PortState::kActive : PortState::kDown,
                           .link_layer = efa             ? LinkLayer::kEfa
                                         : port.ethernet ? LinkLayer::kEthernet
                                                         : LinkLayer::kInfiniBand,
                           .rate_gbps = rate_gbps(device / fmt::format("ports/{}", port.number)),
                           .netdev = netdev_of(device, port.number)});
    out.push_back(std::move(nic));
  }
  return out;
}

}  // namespace leeway::transport
