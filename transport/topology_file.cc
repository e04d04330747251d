// The format: lines of words; a word that begins with '#' starts a comment. The first line is
// "leeway-topology 1". Then, in any order but that a port belongs to the NIC before it and a node
// is listed before it is named:
//
//   node N [cpus=N-N,N,...]
//   gpu PCI [model=VENDOR:DEVICE] [node=N] [bridges=B/B/...]
//   nic NAME driver=efa|verbs|tcp [attachment=hardware|virtual|loopback] [pci=PCI] [node=N]
//       [bridges=B/B/...]                                                 (on one line)
//   port N state=active|down link=infiniband|ethernet|efa [rate=GBIT/S] [netdev=NAME]
//       [addresses=IP,IP,...]                                             (on one line)
#include "transport/topology_file.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>

#include "common/knobs.h"
#include "common/result.h"

namespace leeway::transport {
namespace {

constexpr std::string_view kFirstLine = "leeway-topology 1";
constexpr std::size_t kLongestText = 1 << 20;
constexpr std::size_t kLongestName = 64;
constexpr std::size_t kLongestCpus = 4096;
constexpr std::size_t kMostDevices = 1024;  // of each kind; ports and addresses of one NIC
constexpr std::size_t kDeepestPci = 32;
constexpr int kHighestNumber = 4095;
constexpr double kHighestRate = 100'000;

std::vector<std::string_view> split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of(separators), text.size());
    if (end > 0) out.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

bool name_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.' ||
         c == ':' || c == '@';
}

bool ip_address(const std::string& text) {
  in6_addr address;
  return inet_pton(AF_INET, text.c_str(), &address) == 1 ||
         inet_pton(AF_INET6, text.c_str(), &address) == 1;
}

class Parser {
 public:
  explicit Parser(const std::string& file) : file_(file) {}

  Topology parse(std::string_view text) {
    if (text.size() > kLongestText) fail(fmt::format("longer than {} bytes", kLongestText));
    bool first = true;
    for (line_ = 1; !text.empty() || first; ++line_) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      std::string_view line = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      if (first && line != kFirstLine)
        fail(fmt::format("a recorded topology begins with the line '{}'", kFirstLine));
      if (!first) parse_line(line);
      first = false;
    }
    return std::move(out_);
  }

 private:
  using Fields = std::map<std::string, std::string, std::less<>>;

  [[noreturn]] void fail(const std::string& why) const {
    throw ConfigError(fmt::format("{}:{}: {}", file_, line_, why));
  }

  void parse_line(std::string_view line) {
    auto words = split(line, " \t\r");
    const auto comment =
        std::find_if(words.begin(), words.end(), [](auto word) { return word.starts_with('#'); });
    words.erase(comment, words.end());
    if (words.empty()) return;
    static const std::vector<std::string> kKinds = {"node", "gpu", "nic", "port"};
    const std::string kind(words[0]);
    if (std::find(kKinds.begin(), kKinds.end(), kind) == kKinds.end())
      fail(fmt::format("'{}' is none of {}", name(kind), fmt::join(kKinds, ", ")));
    if (words.size() < 2) fail(fmt::format("{} needs a name or number", kind));
    const std::string subject = name(words[1]);
    words.erase(words.begin(), words.begin() + 2);
    if (kind == "node") parse_node(subject, words);
    if (kind == "gpu") parse_gpu(subject, words);
    if (kind == "nic") parse_nic(subject, words);
    if (kind == "port") parse_port(subject, words);
  }

  void parse_node(const std::string& subject, const std::vector<std::string_view>& words) {
    const Fields f = fields(words, {"cpus"});
    const int node = number(subject);
    if (has_node(node)) fail(fmt::format("node {} is listed twice", node));
    limit(out_.numa_nodes.size(), "nodes");
    out_.numa_nodes.push_back({.number = node});
    if (!f.contains("cpus")) return;
    const std::string& cpus = f.at("cpus");
    if (cpus.size() > kLongestCpus || !is_cpu_list(cpus))
      fail("cpus should be numbers and ranges, ascending, such as 0-47,96-143");
    out_.numa_nodes.back().cpus = cpus;
  }

  void parse_gpu(const std::string& subject, const std::vector<std::string_view>& words) {
    const Fields f = fields(words, {"model", "node", "bridges"});
    limit(out_.gpus.size(), "GPUs");
    GpuInfo gpu{.model = f.contains("model") ? name(f.at("model")) : "", .place = place(f)};
    gpu.place.address = normal_pci_address(subject);
    if (!seen_.insert("gpu " + gpu.place.address).second)
      fail(fmt::format("gpu {} is listed twice", gpu.place.address));
    out_.gpus.push_back(std::move(gpu));
  }

  void parse_nic(const std::string& subject, const std::vector<std::string_view>& words) {
    const Fields f = fields(words, {"driver", "attachment", "pci", "node", "bridges"});
    limit(out_.nics.size(), "NICs");
    if (!seen_.insert("nic " + subject).second)
      fail(fmt::format("nic {} is listed twice", subject));
    Nic nic{.name = subject,
            .driver = one_of(f, "driver", {Family::kEfa, Family::kVerbs, Family::kTcp}),
            .place = place(f)};
    if (f.contains("attachment"))
      nic.attachment = one_of(f, "attachment",
                              {Attachment::kHardware, Attachment::kVirtual, Attachment::kLoopback});
    if (f.contains("pci")) nic.place.address = normal_pci_address(name(f.at("pci")));
    out_.nics.push_back(std::move(nic));
  }

  void parse_port(const std::string& subject, const std::vector<std::string_view>& words) {
    if (out_.nics.empty()) fail("a port comes after its nic");
    auto& ports = out_.nics.back().ports;
    const Fields f = fields(words, {"state", "link", "rate", "netdev", "addresses"});
    limit(ports.size(), "ports of one NIC");
    Port port{.number = number(subject),
              .state = one_of(f, "state", {PortState::kActive, PortState::kDown}),
              .link_layer = one_of(
                  f, "link", {LinkLayer::kInfiniBand, LinkLayer::kEthernet, LinkLayer::kEfa})};
    for (const Port& other : ports)
      if (other.number == port.number)
        fail(fmt::format("port {} of {} is listed twice", port.number, out_.nics.back().name));
    if (f.contains("rate")) port.rate_gbps = rate(f.at("rate"));
    if (f.contains("netdev")) port.netdev = name(f.at("netdev"));
    if (f.contains("addresses")) {
      for (const std::string_view word : split(f.at("addresses"), ",")) {
        limit(port.addresses.size(), "addresses of one port");
        port.addresses.push_back(name(word));
        if (!ip_address(port.addresses.back()))
          fail(fmt::format("'{}' is no IP address", port.addresses.back()));
      }
    }
    ports.push_back(std::move(port));
  }

  Fields fields(const std::vector<std::string_view>& words, const std::vector<std::string>& known) {
    Fields out;
    for (const std::string_view word : words) {
      const std::size_t equals = word.find('=');
      const std::string key = name(word.substr(0, equals));
      if (equals == std::string_view::npos) fail(fmt::format("'{}' should be KEY=VALUE", key));
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        const std::string guess = nearest(key, known);
        fail(fmt::format("'{}' is not known here{}", key,
                         guess.empty() ? "" : fmt::format(" (did you mean '{}'?)", guess)));
      }
      if (!out.emplace(key, word.substr(equals + 1)).second)
        fail(fmt::format("'{}' is said twice", key));
    }
    return out;
  }

  std::string name(std::string_view text) const {
    if (text.empty()) fail("a value is empty");
    if (text.size() > kLongestName || !std::all_of(text.begin(), text.end(), name_character))
      fail(fmt::format("a name has up to {} letters, digits or _-.:@", kLongestName));
    return std::string(text);
  }

  int number(const std::string& text) const {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 0 ||
        value > kHighestNumber)
      fail(fmt::format("'{}' should be a number from 0 to {}", text, kHighestNumber));
    return value;
  }

  double rate(const std::string& text) const {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value) ||
        value < 0 || value > kHighestRate)
      fail(fmt::format("rate = '{}' should be Gbit/s, from 0 to {}", name(text), kHighestRate));
    return value;
  }

  PciPlace place(const Fields& f) const {
    PciPlace out;
    if (f.contains("node")) {
      out.numa_node = number(name(f.at("node")));
      if (!has_node(out.numa_node)) fail(fmt::format("node {} is not listed above", out.numa_node));
    }
    if (f.contains("bridges")) {
      for (const std::string_view bridge : split(f.at("bridges"), "/")) {
        if (out.bridges.size() == kDeepestPci) fail(fmt::format("over {} bridges", kDeepestPci));
        out.bridges.push_back(name(bridge));
      }
    }
    return out;
  }

  template <typename Enum>
  Enum one_of(const Fields& f, std::string_view key, std::initializer_list<Enum> values) const {
    std::vector<std::string_view> words;
    for (const Enum value : values) words.push_back(to_string(value));
    const auto found = f.find(key);
    if (found == f.end()) fail(fmt::format("{}={} is missing", key, fmt::join(words, "|")));
    for (const Enum value : values)
      if (found->second == to_string(value)) return value;
    fail(fmt::format("{} = '{}' should be {}", key, name(found->second), fmt::join(words, "|")));
  }

  bool has_node(int node) const {
    const auto& nodes = out_.numa_nodes;
    return std::ranges::find(nodes, node, &NumaNode::number) != nodes.end();
  }

  void limit(std::size_t count, const char* what) const {
    if (count == kMostDevices) fail(fmt::format("over {} {}", kMostDevices, what));
  }

  const std::string& file_;
  int line_ = 1;
  Topology out_;
  std::set<std::string> seen_;
};

std::string print_place(const PciPlace& place) {
  std::string out;
  if (place.numa_node != kNoNode) out += fmt::format(" node={}", place.numa_node);
  if (!place.bridges.empty()) out += fmt::format(" bridges={}", fmt::join(place.bridges, "/"));
  return out;
}

}  // namespace

Topology parse_topology(std::string_view text, const std::string& file) {
  return Parser(file).parse(text);
}

std::string print_topology(const Topology& topology) {
  std::string out = fmt::format("{}\n", kFirstLine);
  for (const NumaNode& node : topology.numa_nodes)
    out += fmt::format("node {}{}\n", node.number,
                       node.cpus.empty() ? "" : fmt::format(" cpus={}", node.cpus));
  for (const GpuInfo& gpu : topology.gpus) {
    out += fmt::format("gpu {}", gpu.place.address);
    if (!gpu.model.empty()) out += fmt::format(" model={}", gpu.model);
    out += print_place(gpu.place) + "\n";
  }
  for (const Nic& nic : topology.nics) {
    out += fmt::format("nic {} driver={} attachment={}", nic.name, to_string(nic.driver),
                       to_string(nic.attachment));
    if (!nic.place.address.empty()) out += fmt::format(" pci={}", nic.place.address);
    out += print_place(nic.place) + "\n";
    for (const Port& port : nic.ports) {
      out += fmt::format("port {} state={} link={}", port.number, to_string(port.state),
                         to_string(port.link_layer));
      if (port.rate_gbps > 0) out += fmt::format(" rate={}", port.rate_gbps);
      if (!port.netdev.empty()) out += fmt::format(" netdev={}", port.netdev);
      if (!port.addresses.empty())
        out += fmt::format(" addresses={}", fmt::join(port.addresses, ","));
      out += "\n";
    }
  }
  return out;
}

}  // namespace leeway::transport
