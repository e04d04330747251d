#include "transport/topology.h"

#include <algorithm>
#include <cctype>
#include <charconv>

namespace leeway::transport {
namespace {

constexpr long kHighestCpu = 65535;

}  // namespace

std::string_view to_string(Family family) noexcept {
  switch (family) {
    case Family::kEfa:
      return "efa";
    case Family::kVerbs:
      return "verbs";
    case Family::kTcp:
      break;
  }
  return "tcp";
}

std::string_view to_string(PortState state) noexcept {
  return state == PortState::kActive ? "active" : "down";
}

std::string_view to_string(LinkLayer layer) noexcept {
  switch (layer) {
    case LinkLayer::kInfiniBand:
      return "infiniband";
    case LinkLayer::kEfa:
      return "efa";
    case LinkLayer::kEthernet:
      break;
  }
  return "ethernet";
}

std::string_view to_string(Attachment attachment) noexcept {
  switch (attachment) {
    case Attachment::kVirtual:
      return "virtual";
    case Attachment::kLoopback:
      return "loopback";
    case Attachment::kHardware:
      break;
  }
  return "hardware";
}

std::string_view to_string(Distance distance) noexcept {
  switch (distance) {
    case Distance::kSameSwitch:
      return "same switch";
    case Distance::kSameHostBridge:
      return "same host bridge";
    case Distance::kSameNode:
      return "same NUMA node";
    case Distance::kOtherNode:
      break;
  }
  return "another NUMA node";
}

Distance distance(const PciPlace& a, const PciPlace& b) noexcept {
  const auto [first, second] =
      std::mismatch(a.bridges.begin(), a.bridges.end(), b.bridges.begin(), b.bridges.end());
  const auto shared = first - a.bridges.begin();
  if (shared >= 2) return Distance::kSameSwitch;
  if (shared == 1) return Distance::kSameHostBridge;
  return a.numa_node != kNoNode && a.numa_node == b.numa_node ? Distance::kSameNode
                                                              : Distance::kOtherNode;
}

bool is_cpu_list(std::string_view text) noexcept {
  long last = -1;
  while (true) {
    for (int part = 0; part < 2; ++part) {  // FIRST or FIRST-LAST
      long number = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
      if (error != std::errc() || number <= last || number > kHighestCpu) return false;
      text.remove_prefix(static_cast<std::size_t>(end - text.data()));
      last = number;
      if (part == 1 || !text.starts_with('-')) break;
      text.remove_prefix(1);
    }
    if (text.empty()) return true;
    if (!text.starts_with(',')) return false;
    text.remove_prefix(1);
  }
}

std::string normal_pci_address(std::string_view text) {
  std::string out;
  for (const char c : text) out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const std::size_t domain = out.find(':');
  if (domain == std::string::npos || out.find(':', domain + 1) == std::string::npos)
    return "0000:" + out;  // no domain was said
  std::size_t zeros = 0;
  while (domain - zeros > 4 && out[zeros] == '0') ++zeros;
  return out.substr(zeros);
}

}  // namespace leeway::transport
