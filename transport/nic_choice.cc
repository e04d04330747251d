#include "transport/nic_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>

#include "common/knobs.h"
#include "common/result.h"

namespace leeway::transport {
namespace {

constexpr std::array kBestFirst = {Family::kEfa, Family::kVerbs, Family::kTcp};
constexpr double kLeastRate = 0.5;  // of the fastest rail

struct Candidate {
  const Nic* nic;
  const Port* port;
  std::string name;
  std::string address;
};

bool link_local(std::string_view address) {
  return address.starts_with("169.254.") || address.starts_with("fe80:");
}

// IPv4 before IPv6; an IPv6 link-local address means nothing without its interface.
std::string best_address(const Port& port) {
  const auto rank = [](const std::string& address) {
    const bool v6 = address.find(':') != std::string::npos;
    return link_local(address) ? (v6 ? 3 : 2) : (v6 ? 1 : 0);
  };
  const auto best =
      std::min_element(port.addresses.begin(), port.addresses.end(),
                       [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  return best == port.addresses.end() || rank(*best) == 3 ? "" : *best;
}

bool needs_address(Family family) { return family != Family::kEfa; }

// Every port that this family could use, were it up. tcp runs over any interface, also that of an
// RDMA NIC; the one under a virtual RDMA device is a NIC of its own.
std::vector<Candidate> candidates(const Topology& topology, Family family) {
  std::vector<Candidate> out;
  for (const Nic& nic : topology.nics) {
    for (const Port& port : nic.ports) {
      std::string name =
          nic.ports.size() > 1 ? fmt::format("{}/{}", nic.name, port.number) : nic.name;
      if (family == Family::kTcp) {
        if (nic.driver != Family::kTcp &&
            (port.netdev.empty() || nic.attachment == Attachment::kVirtual))
          continue;
        if (!port.netdev.empty()) name = port.netdev;
      } else if (nic.driver != family) {
        continue;
      }
      out.push_back({&nic, &port, std::move(name), best_address(port)});
    }
  }
  return out;
}

// Empty: can be a rail.
std::string why_unusable(const Candidate& c, Family family) {
  if (c.port->state != PortState::kActive) return "the port is down";
  if (!needs_address(family) || !c.address.empty()) return "";
  const std::string& netdev = c.port->netdev.empty() ? c.nic->name : c.port->netdev;
  return fmt::format("{} has no IP address, by which {} finds its peers", netdev,
                     to_string(family));
}

bool answers_to(const Candidate& c, const std::string& device) {
  const auto& addresses = c.port->addresses;
  return device == c.name || device == c.nic->name || device == c.port->netdev ||
         std::find(addresses.begin(), addresses.end(), device) != addresses.end();
}

// One answer in the making: what is still in, and why the others are out.
class Selection {
 public:
  Selection(const Topology& topology, Family family, std::vector<LeftOut>& left_out)
      : topology_(topology), family_(family), left_out_(left_out) {}

  std::vector<Candidate> usable() {
    in_ = candidates(topology_, family_);
    keep_if([&](const Candidate& c) { return why_unusable(c, family_); });
    keep_best_attachment();
    keep_one_link_layer();
    keep_those_with_gpus();
    keep_fast();
    return in_;
  }

 private:
  // `reason` is empty for what stays. Nobody misses a loopback.
  template <typename Reason>
  void keep_if(Reason reason) {
    std::vector<Candidate> kept;
    for (Candidate& c : in_) {
      const std::string why = reason(c);
      if (why.empty())
        kept.push_back(std::move(c));
      else if (c.nic->attachment != Attachment::kLoopback)
        left_out_.push_back({c.name, why});
    }
    in_ = std::move(kept);
  }

  bool any(Attachment attachment) const {
    return std::any_of(in_.begin(), in_.end(),
                       [&](const Candidate& c) { return c.nic->attachment == attachment; });
  }

  // Which of several virtual interfaces leads to the peers cannot be seen from here: one is taken.
  void keep_best_attachment() {
    const Attachment best = any(Attachment::kHardware)  ? Attachment::kHardware
                            : any(Attachment::kVirtual) ? Attachment::kVirtual
                                                        : Attachment::kLoopback;
    bool taken = false;
    keep_if([&](const Candidate& c) -> std::string {
      if (c.nic->attachment != best) return "virtual, and there is a NIC; name it to use it";
      if (best == Attachment::kHardware || !std::exchange(taken, true)) return "";
      return "virtual, and one of those is in use; name it to use it";
    });
  }

  // A port of one cannot reach a port of the other.
  void keep_one_link_layer() {
    std::map<LinkLayer, double> sums;
    for (const Candidate& c : in_) sums[c.port->link_layer] += c.port->rate_gbps;
    if (sums.size() < 2) return;
    const LinkLayer best = std::max_element(sums.begin(), sums.end(), [](auto& a, auto& b) {
                             return a.second < b.second;
                           })->first;
    keep_if([&](const Candidate& c) -> std::string {
      if (c.port->link_layer == best) return "";
      return fmt::format("{}, and the rails are {}", to_string(c.port->link_layer),
                         to_string(best));
    });
  }

  bool has_gpu(const Candidate& c) const {
    return std::any_of(topology_.gpus.begin(), topology_.gpus.end(), [&](const GpuInfo& gpu) {
      return distance(gpu.place, c.nic->place) == Distance::kSameSwitch;
    });
  }

  void keep_those_with_gpus() {
    const auto served = [&](const GpuInfo& gpu) {
      return std::any_of(in_.begin(), in_.end(), [&](const Candidate& c) {
        return distance(gpu.place, c.nic->place) == Distance::kSameSwitch;
      });
    };
    if (topology_.gpus.empty() ||
        !std::all_of(topology_.gpus.begin(), topology_.gpus.end(), served))
      return;
    keep_if([&](const Candidate& c) -> std::string {
      return has_gpu(c) ? ""
                        : "shares its PCIe switch with no GPU, as the rails do: storage or "
                          "management";
    });
  }

  void keep_fast() {
    double best = 0;
    for (const Candidate& c : in_) best = std::max(best, c.port->rate_gbps);
    keep_if([&](const Candidate& c) -> std::string {
      const double rate = c.port->rate_gbps;
      if (rate >= kLeastRate * best) return "";
      if (rate == 0) return "its rate is not known; name it to use it";
      return fmt::format("{} Gbit/s, and the fastest has {}", rate, best);
    });
  }

  const Topology& topology_;
  Family family_;
  std::vector<LeftOut>& left_out_;
  std::vector<Candidate> in_;
};

RailPlan plan(const Candidate& c, Family family) {
  return {.family = family,
          .device = family == Family::kTcp ? c.name : c.nic->name,
          .domain = family == Family::kEfa     ? c.nic->name + "-rdm"
                    : family == Family::kVerbs ? c.nic->name
                                               : c.name,
          .address = needs_address(family) ? c.address : "",
          .rate_gbps = c.port->rate_gbps,
          .weight = 1,
          .numa_node = c.nic->place.numa_node};
}

// Of all rails, near ones or not, those that are near GPU `gpu`.
void mark_near(const NicChoice& choice, const std::string& gpu, std::vector<RailPlan>& rails) {
  for (const GpuRails& each : choice.gpus) {
    if (each.gpu != gpu) continue;
    for (std::size_t i = 0; i < rails.size(); ++i)
      rails[i].near = std::find(each.rails.begin(), each.rails.end(), i) != each.rails.end();
  }
}

// By rate where all rates are known, else all alike.
void weigh(std::vector<RailPlan>& rails) {
  const bool known =
      std::all_of(rails.begin(), rails.end(), [](const RailPlan& r) { return r.rate_gbps > 0; });
  double sum = 0;
  for (RailPlan& rail : rails) sum += rail.weight = !rail.near ? 0 : known ? rail.rate_gbps : 1;
  for (RailPlan& rail : rails) rail.weight /= sum;
}

// GPUs to which the same rails are nearest take turns: each gets its part of them, or, where there
// are more GPUs, one.
std::vector<GpuRails> share_out(const std::vector<GpuInfo>& gpus,
                                const std::vector<Candidate>& rails) {
  std::vector<GpuRails> out;
  std::map<std::vector<std::size_t>, std::vector<std::size_t>> groups;  // rails -> GPUs
  for (const GpuInfo& gpu : gpus) {
    Distance best = Distance::kOtherNode;
    for (const Candidate& c : rails) best = std::min(best, distance(gpu.place, c.nic->place));
    std::vector<std::size_t> near;
    for (std::size_t i = 0; i < rails.size(); ++i)
      if (distance(gpu.place, rails[i].nic->place) == best) near.push_back(i);
    groups[near].push_back(out.size());
    out.push_back({.gpu = gpu.place.address, .distance = best, .rails = {}});
  }
  for (const auto& [near, members] : groups) {
    for (std::size_t i = 0; i < members.size(); ++i) {
      const std::size_t begin = i * near.size() / members.size();
      const std::size_t end = std::max(begin + 1, (i + 1) * near.size() / members.size());
      out[members[i]].rails.assign(near.begin() + static_cast<std::ptrdiff_t>(begin),
                                   near.begin() + static_cast<std::ptrdiff_t>(end));
    }
  }
  return out;
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& words) {
  const std::string guess = nearest(word, words);
  return guess.empty() ? "" : fmt::format(" (did you mean '{}'?)", guess);
}

[[noreturn]] void refuse_device(const Topology& topology, const std::string& fabric,
                                const std::string& device) {
  std::vector<std::string> names;
  for (const Family family : kBestFirst) {
    for (const Candidate& c : candidates(topology, family)) {
      if (answers_to(c, device))
        throw ConfigError(fmt::format("fabric {}: device '{}' is driven by {}", fabric, device,
                                      to_string(family)));
      if (std::find(names.begin(), names.end(), c.name) == names.end()) names.push_back(c.name);
    }
  }
  throw ConfigError(fmt::format("fabric {}: no device '{}' on this machine{}; it has {}", fabric,
                                device, did_you_mean(device, names), fmt::join(names, ", ")));
}

// Nothing when some device is not of this family.
std::optional<std::vector<Candidate>> named(const Topology& topology, Family family,
                                            const std::vector<std::string>& devices) {
  std::vector<Candidate> in;
  std::vector<bool> used(devices.size(), false);
  for (Candidate& c : candidates(topology, family)) {
    bool wanted = false;
    for (std::size_t i = 0; i < devices.size(); ++i) {
      if (!answers_to(c, devices[i])) continue;
      wanted = used[i] = true;
      const auto& addresses = c.port->addresses;
      if (std::find(addresses.begin(), addresses.end(), devices[i]) != addresses.end())
        c.address = devices[i];
    }
    if (wanted) in.push_back(std::move(c));
  }
  if (std::find(used.begin(), used.end(), false) != used.end()) return std::nullopt;
  return in;
}

bool offered(const RailRequest& request, Family family) {
  return !request.offered || std::find(request.offered->begin(), request.offered->end(), family) !=
                                 request.offered->end();
}

std::vector<Family> wanted_families(const RailRequest& request) {
  if (request.fabric == "auto") return {kBestFirst.begin(), kBestFirst.end()};
  for (const Family family : kBestFirst)
    if (request.fabric == to_string(family)) return {family};
  throw ConfigError(fmt::format("fabric '{}' has no NICs to choose from: efa, verbs and tcp have",
                                request.fabric));
}

NicChoice finish(const Topology& topology, Family family, const std::vector<Candidate>& in,
                 std::vector<LeftOut> left_out) {
  NicChoice choice{.family = family, .rails = {}, .left_out = std::move(left_out), .gpus = {}};
  for (const Candidate& c : in) choice.rails.push_back(plan(c, family));
  weigh(choice.rails);
  choice.gpus = share_out(topology.gpus, in);
  return choice;
}

NicChoice choose_named(const Topology& topology, const RailRequest& request) {
  const auto families = wanted_families(request);
  for (const Family family : families) {
    if (!offered(request, family)) continue;
    const auto in = named(topology, family, request.devices);
    if (!in) continue;
    for (const Candidate& c : *in)
      if (const std::string why = why_unusable(c, family); !why.empty())
        throw ConfigError(fmt::format("fabric {}: device '{}' was asked for and cannot be used: {}",
                                      request.fabric, c.name, why));
    return finish(topology, family, *in, {});
  }
  for (const Family family : families)
    if (!offered(request, family) && named(topology, family, request.devices))
      throw ConfigError(fmt::format("fabric {}: libfabric offers no {} here, which drives {}",
                                    request.fabric, to_string(family),
                                    fmt::join(request.devices, ", ")));
  for (const std::string& device : request.devices) {
    const bool known = std::any_of(families.begin(), families.end(), [&](Family family) {
      return named(topology, family, {device}).has_value();
    });
    if (!known) refuse_device(topology, request.fabric, device);
  }
  throw ConfigError(fmt::format("fabric {}: no fabric reaches all of the devices {}",
                                request.fabric, fmt::join(request.devices, ", ")));
}

NicChoice choose_all(const Topology& topology, const RailRequest& request) {
  std::vector<LeftOut> left_out;
  for (const Family family : wanted_families(request)) {
    if (!offered(request, family)) {
      for (const Candidate& c : candidates(topology, family))
        left_out.push_back({c.name, fmt::format("libfabric offers no {} here", to_string(family))});
      continue;
    }
    const auto in = Selection(topology, family, left_out).usable();
    if (in.empty()) continue;
    for (const Nic& nic : topology.nics)
      if (nic.driver > family && nic.attachment == Attachment::kHardware)
        left_out.push_back({nic.name, fmt::format("reached by {} only, and the rails are {}",
                                                  to_string(nic.driver), to_string(family))});
    return finish(topology, family, in, std::move(left_out));
  }
  std::vector<std::string> reasons;
  reasons.reserve(left_out.size());
  for (const LeftOut& out : left_out)
    reasons.push_back(fmt::format("{}: {}", out.name, out.reason));
  throw ConfigError(fmt::format("fabric {}: no NIC here can be used{}{}", request.fabric,
                                reasons.empty() ? "" : "; ", fmt::join(reasons, "; ")));
}

}  // namespace

NicChoice choose_nics(const Topology& topology, const RailRequest& request) {
  return request.devices.empty() ? choose_all(topology, request) : choose_named(topology, request);
}

std::vector<RailPlan> choose_rails(const Topology& topology, const RailRequest& request) {
  NicChoice choice = choose_nics(topology, request);
  if (!request.gpu) return choice.rails;
  const std::string wanted = normal_pci_address(*request.gpu);
  std::vector<std::string> addresses;
  for (const GpuRails& gpu : choice.gpus) addresses.push_back(gpu.gpu);
  if (std::find(addresses.begin(), addresses.end(), wanted) == addresses.end())
    throw ConfigError(
        fmt::format("no GPU {} on this machine{}", *request.gpu, did_you_mean(wanted, addresses)));
  std::vector<RailPlan> rails = std::move(choice.rails);
  mark_near(choice, wanted, rails);
  weigh(rails);
  return rails;
}

std::vector<RailPlan> plan_addresses(const Topology& topology,
                                     const std::vector<std::string>& addresses,
                                     const std::optional<std::string>& gpu) {
  const std::vector<Candidate> there = candidates(topology, Family::kTcp);
  std::vector<Candidate> in;
  std::vector<RailPlan> rails;
  for (const std::string& address : addresses) {
    const auto on = std::find_if(there.begin(), there.end(), [&](const Candidate& c) {
      const auto& its = c.port->addresses;
      return std::find(its.begin(), its.end(), address) != its.end();
    });
    RailPlan& rail = rails.emplace_back();
    if (on != there.end()) {
      in.push_back(*on);
      rail = plan(*on, Family::kTcp);
    }
    rail.address = address;
  }
  if (gpu && in.size() == addresses.size()) {
    NicChoice choice;
    choice.gpus = share_out(topology.gpus, in);
    mark_near(choice, normal_pci_address(*gpu), rails);
  }
  weigh(rails);
  return rails;
}

std::size_t tcp_streams(double rate_gbps, std::size_t nics) {
  constexpr double kOne = 5;
  constexpr std::size_t kMost = 8, kMostInAll = 32;
  const auto wanted = static_cast<std::size_t>(std::ceil(std::min(rate_gbps, 1000.0) / kOne));
  return std::clamp<std::size_t>(std::min(wanted, kMostInAll / std::max<std::size_t>(nics, 1)), 1,
                                 kMost);
}

std::vector<RailPlan> plan_streams(const std::vector<RailPlan>& nics) {
  std::size_t turns = 0;
  for (const RailPlan& nic : nics) turns = std::max(turns, tcp_streams(nic.rate_gbps, nics.size()));
  std::vector<RailPlan> streams;
  for (std::size_t turn = 0; turn < turns; ++turn) {
    for (const RailPlan& nic : nics) {
      RailPlan& stream = streams.emplace_back(nic);
      stream.rate_gbps /= static_cast<double>(turns);
      stream.weight /= static_cast<double>(turns);
    }
  }
  return streams;
}

std::optional<std::string> local_gpu(const Topology& topology, const char* local_rank,
                                     const char* visible_devices) {
  const auto number = [](std::string_view text) -> std::optional<std::size_t> {
    std::size_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
  };
  if (local_rank == nullptr && visible_devices == nullptr) return std::nullopt;
  std::vector<std::string> gpus;
  gpus.reserve(topology.gpus.size());
  for (const GpuInfo& gpu : topology.gpus) gpus.push_back(gpu.place.address);
  std::sort(gpus.begin(), gpus.end());
  std::vector<std::optional<std::size_t>> visible;
  if (visible_devices == nullptr) {
    for (std::size_t i = 0; i < gpus.size(); ++i) visible.emplace_back(i);
  } else {
    std::string_view list = visible_devices;
    while (!list.empty()) {
      const std::size_t comma = std::min(list.find(','), list.size());
      const std::string_view entry = list.substr(0, comma);
      // As CUDA reads it: the list ends before the first number that is none.
      if (entry.starts_with('-')) break;
      visible.push_back(number(entry));
      if (visible.back() && *visible.back() >= gpus.size()) visible.back().reset();
      list.remove_prefix(std::min(comma + 1, list.size()));
    }
  }
  if (visible.empty()) return std::nullopt;
  const auto rank = local_rank != nullptr ? number(local_rank) : std::optional<std::size_t>(0);
  if (!rank) return std::nullopt;
  const auto chosen = visible[*rank % visible.size()];
  if (!chosen) return std::nullopt;
  return gpus[*chosen];
}

}  // namespace leeway::transport
