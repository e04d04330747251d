#include "transport/inventory_netdevs.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/in.h>
#include <netpacket/packet.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>
#include <fstream>
#include <memory>

#include "transport/host_addresses.h"

namespace leeway::transport {
namespace {

namespace fs = std::filesystem;

constexpr int kDeepestStack = 8;  // VLAN on a bond on NICs: three

// "0000:18:00.0"
bool looks_like_pci(const std::string& name) {
  const std::size_t first = name.find(':');
  return first != std::string::npos && first >= 4 && name.size() == first + 8 &&
         name[first + 3] == ':' && name[first + 6] == '.' &&
         std::all_of(name.begin(), name.begin() + static_cast<std::ptrdiff_t>(first),
                     [](unsigned char c) { return std::isxdigit(c) != 0; });
}

// Some hardware carries this interface: its own, or that of one it is stacked on.
bool on_hardware(const fs::path& netdev, int depth = 0) {
  std::error_code error;
  if (fs::exists(netdev / "device", error)) return true;
  if (depth == kDeepestStack) return false;
  for (fs::directory_iterator it(netdev, error), end; !error && it != end; it.increment(error))
    if (it->path().filename().string().starts_with("lower_") && on_hardware(it->path(), depth + 1))
      return true;
  return false;
}

double rate_gbps(const fs::path& netdev) {
  const std::string text = read_line(netdev / "speed");  // Mbit/s, -1: not known
  double megabits = 0;
  std::from_chars(text.data(), text.data() + text.size(), megabits);
  // Some drivers say the largest number there is.
  return megabits > 0 && megabits < 100e6 ? megabits / 1000 : 0;
}

}  // namespace

std::string read_line(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back())) != 0)
    line.pop_back();
  return line;
}

std::string pci_address_of(const fs::path& link) {
  std::error_code error;
  fs::path path = fs::canonical(link, error);
  if (error) return "";
  for (; path.has_relative_path(); path = path.parent_path())
    if (looks_like_pci(path.filename().string()))
      return normal_pci_address(path.filename().string());
  return "";
}

std::vector<Interface> list_interfaces() {
  std::vector<Interface> out;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return out;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    // An address may have a label of its own, "eth0:1".
    const std::string name(entry->ifa_name, std::strcspn(entry->ifa_name, ":"));
    auto it =
        std::find_if(out.begin(), out.end(), [&](const Interface& i) { return i.name == name; });
    if (it == out.end()) it = out.insert(out.end(), Interface{.name = name});
    constexpr unsigned kRunning = IFF_UP | IFF_RUNNING;
    it->running = (entry->ifa_flags & kRunning) == kRunning;
    it->loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
    if (entry->ifa_addr == nullptr) continue;
    if (entry->ifa_addr->sa_family == AF_PACKET)
      it->infiniband =
          reinterpret_cast<const sockaddr_ll*>(entry->ifa_addr)->sll_hatype == ARPHRD_INFINIBAND;
    if (std::string text = numeric_address(entry->ifa_addr); !text.empty())
      it->addresses.push_back(std::move(text));
  }
  return out;
}

std::vector<Nic> read_netdevs(const std::vector<Interface>& interfaces, const fs::path& sysfs) {
  std::vector<Nic> out;
  for (const Interface& interface : interfaces) {
    const fs::path netdev = sysfs / "class/net" / interface.name;
    out.push_back({.name = interface.name,
                   .driver = Family::kTcp,
                   .attachment = interface.loopback    ? Attachment::kLoopback
                                 : on_hardware(netdev) ? Attachment::kHardware
                                                       : Attachment::kVirtual,
                   .place = {.address = pci_address_of(netdev / "device")},
                   .ports = {{.number = 1,
                              .state = interface.running ? PortState::kActive : PortState::kDown,
                              .link_layer = interface.infiniband ? LinkLayer::kInfiniBand
                                                                 : LinkLayer::kEthernet,
                              .rate_gbps = rate_gbps(netdev),
                              .netdev = interface.name,
                              .addresses = interface.addresses}}});
  }
  return out;
}

}  // namespace leeway::transport
