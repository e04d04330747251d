#include "transport/doctor/checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>

namespace leeway::doctor {
namespace {

using transport::Attachment;
using transport::Family;
using transport::Nic;
using transport::Topology;

constexpr std::uint64_t kMiB = 1 << 20;
// Beside weights and gradients: queues and message buffers of a few dozen peers.
constexpr std::uint64_t kOwnLockedMemory = 64 * kMiB;
// One connection to each peer, log files, and what the libraries open.
constexpr std::uint64_t kLeastFiles = 64;
constexpr std::uint64_t kManyFiles = 1024;
// Kernels from here on copy pinned pages when a process forks, and register dmabuf.
constexpr std::pair kForkSafeKernel{5, 12};
constexpr int kFirstDriverWithDmabuf = 515;
constexpr std::pair kFabricWithDmabuf{1, 20};  // explicit ones (transport/gpu_path.h)
constexpr std::pair kOldestLibfabric{1, 17};

bool pins(std::string_view family) { return family == "efa" || family == "verbs"; }

// The first two numbers of a version.
std::pair<int, int> version(const std::string& text) {
  std::pair<int, int> out{0, 0};
  const char* end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, out.first);
  if (first.ec == std::errc() && first.ptr != end && *first.ptr == '.')
    std::from_chars(first.ptr + 1, end, out.second);
  return out;
}

std::string service_limit(const char* flag, const char* service, std::uint64_t hard) {
  return fmt::format("ulimit {}{}; for a service {}", flag,
                     hard == kUnlimited ? ""
                                        : fmt::format(" (the hard limit is {}: root raises it in "
                                                      "/etc/security/limits.conf)",
                                                      hard),
                     service);
}

// RDMA hardware that a job could use but for what is missing on this machine.
std::vector<std::string> idle_hardware(const FabricFacts& fabric, const Topology& topology) {
  const auto families = offered_families(fabric);
  std::vector<std::string> out;
  for (const Nic& nic : topology.nics)
    if (nic.driver != Family::kTcp && nic.attachment == Attachment::kHardware &&
        std::find(families.begin(), families.end(), nic.driver) == families.end())
      out.push_back(nic.name);
  return out;
}

std::vector<std::string> closed_devices(const Topology& topology) {
  std::vector<std::string> out;
  for (const Nic& nic : topology.nics)
    if (nic.ports.empty()) out.push_back(nic.name);
  return out;
}

// Rails that the kernel has and libfabric would not open.
std::vector<std::string> hidden_rails(const transport::NicChoice& choice,
                                      const FabricFacts& fabric) {
  std::vector<std::string> out;
  for (const transport::RailPlan& rail : choice.rails)
    if (rail.family != Family::kTcp &&
        std::none_of(fabric.offers.begin(), fabric.offers.end(), [&](const Offer& offer) {
          return offer.family == transport::to_string(rail.family) &&
                 std::find(offer.domains.begin(), offer.domains.end(), rail.domain) !=
                     offer.domains.end();
        }))
      out.push_back(rail.domain);
  return out;
}

}  // namespace

std::string_view to_string(Level level) noexcept {
  switch (level) {
    case Level::kOk:
      return "ok";
    case Level::kWarning:
      return "warning";
    case Level::kProblem:
      break;
  }
  return "problem";
}

std::string print_bytes(std::uint64_t bytes) {
  if (bytes == kUnlimited) return "unlimited";
  static constexpr std::array kUnits = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} bytes", bytes) : fmt::format("{:.4g} {}", value, kUnits[unit]);
}

std::vector<Family> offered_families(const FabricFacts& fabric) {
  std::vector<Family> out;
  for (const Family family : {Family::kEfa, Family::kVerbs, Family::kTcp})
    if (family == Family::kTcp ||
        std::any_of(fabric.offers.begin(), fabric.offers.end(), [&](const Offer& offer) {
          return offer.family == transport::to_string(family);
        }))
      out.push_back(family);
  return out;
}

std::string family_in_use(const Intent& intent, const NicOutcome& nics) {
  if (nics.choice) return std::string(transport::to_string(nics.choice->family));
  return intent.fabric == "auto" ? "" : intent.fabric;
}

Finding check_libfabric(const FabricFacts& fabric, const Topology& topology) {
  Finding out{.name = "libfabric"};
  std::vector<std::string> offers;
  for (const Offer& offer : fabric.offers)
    offers.push_back(
        fmt::format("{}: {} ({})", offer.family, offer.provider, fmt::join(offer.domains, ", ")));
  out.found = fmt::format(
      "{}.{}; {}", fabric.major, fabric.minor,
      offers.empty() ? "offers no RDMA device" : fmt::format("{}", fmt::join(offers, "; ")));
  const auto idle = idle_hardware(fabric, topology);
  if (std::pair(fabric.major, fabric.minor) < kOldestLibfabric) {
    out.level = Level::kProblem;
    out.change = fmt::format("install libfabric {}.{} or newer", kOldestLibfabric.first,
                             kOldestLibfabric.second);
  } else if (!idle.empty()) {
    out.level = Level::kWarning;
    out.found += fmt::format("; nothing for {}", fmt::join(idle, ", "));
    out.change =
        "see that the user-space drivers are installed (Debian: ibverbs-providers), "
        "/dev/infiniband is visible here, and the ports are up with an IP address";
  }
  return out;
}

Finding check_nics(const Intent& intent, const NicOutcome& nics, const FabricFacts& fabric,
                   const Topology& topology) {
  Finding out{.name = "NICs"};
  if (nics.choice) {
    std::vector<std::string> names;
    for (const transport::RailPlan& rail : nics.choice->rails) names.push_back(rail.device);
    out.found = fmt::format("{} by {}: {}",
                            names.size() == 1 ? "one rail" : fmt::format("{} rails", names.size()),
                            transport::to_string(nics.choice->family), fmt::join(names, ", "));
    const bool loopback =
        std::any_of(topology.nics.begin(), topology.nics.end(), [&](const Nic& nic) {
          return nic.attachment == Attachment::kLoopback && nic.name == names.front();
        });
    if (const auto closed = closed_devices(topology); !closed.empty()) {
      out.level = Level::kWarning;
      out.found += fmt::format("; {} cannot be opened", fmt::join(closed, ", "));
      out.change = "make /dev/infiniband/uverbs* available to this user or container";
    } else if (const auto hidden = hidden_rails(*nics.choice, fabric); !hidden.empty()) {
      out.level = Level::kWarning;
      out.found += fmt::format("; libfabric does not name {}", fmt::join(hidden, ", "));
      out.change = "see what hides them: FI_VERBS_IFACE, FI_TCP_IFACE, FI_EFA_IFACE, permissions";
    } else if (loopback) {
      out.level = Level::kWarning;
      out.change = "no interface leads off this machine: only a job on one machine can run";
    }
  } else if (intent.fabric == "shm") {
    out.found = "shm needs none: all processes on this machine";
  } else {
    out.level = Level::kProblem;
    out.found = nics.error;
    out.change = "bring a port up and give it an IP address, or ask for what is here";
  }
  return out;
}

Finding check_locked_memory(const Facts& facts, std::string_view family,
                            std::optional<std::uint64_t> memory) {
  Finding out{.name = "locked memory", .found = "ulimit -l: " + print_bytes(facts.locked_memory)};
  const std::uint64_t own = kOwnLockedMemory;
  std::uint64_t need = own;
  if (memory && __builtin_add_overflow(*memory, own, &need)) need = kUnlimited - 1;
  if (memory)
    out.found += fmt::format("; needed for {}: {} with queues and messages", print_bytes(*memory),
                             print_bytes(need));
  if (!pins(family)) {
    out.found += fmt::format("; {} pins none", family.empty() ? "tcp" : family);
    return out;
  }
  if (facts.may_lock_all) {
    out.found += "; this user may lock more (CAP_IPC_LOCK)";
    return out;
  }
  if (facts.locked_memory >= need && (memory || facts.locked_memory == kUnlimited)) return out;
  out.level = facts.locked_memory < need ? Level::kProblem : Level::kWarning;
  if (!memory)
    out.found += fmt::format(
        "; {} pins weights, gradients and shards: --memory BYTES checks a size", family);
  out.change = service_limit("-l unlimited", "LimitMEMLOCK=infinity", facts.locked_memory_hard);
  return out;
}

Finding check_shared_memory(const Facts& facts, std::string_view family) {
  Finding out{.name = "shared memory",
              .found =
                  "sealed memfds, between processes of one host; /dev/shm and rights to trace "
                  "are not used"};
  if (facts.sealed_memory) return out;
  out.level = family == "shm" ? Level::kProblem : Level::kWarning;
  out.found = "this process cannot make a sealed memfd";
  out.change = "allow memfd_create in the container's seccomp profile, or use --fabric tcp";
  return out;
}

Finding check_huge_pages(const HugePageFacts& pages) {
  Finding out{.name = "huge pages"};
  out.found =
      fmt::format("transparent: {}; reserved: {}",
                  pages.transparent.empty() ? "not in this kernel" : pages.transparent,
                  pages.reserved == 0 ? "none"
                                      : fmt::format("{} of {}, {} free", pages.reserved,
                                                    print_bytes(pages.page_bytes), pages.free));
  if (pages.transparent == "never" || pages.transparent.empty()) {
    out.level = Level::kWarning;
    out.found += "; registered memory lies in small pages";
    out.change = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
  }
  return out;
}

Finding check_fork(const Facts& facts, std::string_view family) {
  Finding out{.name = "fork"};
  if (!pins(family)) {
    out.found = fmt::format("safe: {} pins no memory", family.empty() ? "tcp" : family);
  } else if (facts.fork == ForkSafety::kNotNeeded || version(facts.kernel) >= kForkSafeKernel) {
    out.found = fmt::format("safe: kernel {} copies pinned pages", facts.kernel);
  } else if (facts.fork == ForkSafety::kOn) {
    out.found = "safe: libibverbs marks pinned pages (RDMAV_FORK_SAFE)";
  } else {
    out.level = Level::kWarning;
    out.found =
        fmt::format("kernel {}: a program that starts others while it trains may lose pinned pages",
                    facts.kernel);
    out.change = family == "efa" ? "export FI_EFA_FORK_SAFE=1 RDMAV_FORK_SAFE=1"
                                 : "export RDMAV_FORK_SAFE=1";
  }
  return out;
}

Finding check_gpu_memory(const Facts& facts, std::string_view family, const Topology& topology) {
  Finding out{.name = "GPU memory"};
  const GpuFacts& gpu = facts.gpu;
  if (topology.gpus.empty()) {
    out.found = "no GPU";
    return out;
  }
  const std::string driver = gpu.driver.empty() ? "no NVIDIA driver is loaded"
                                                : fmt::format("NVIDIA driver {}{}", gpu.driver,
                                                              gpu.open_driver ? " (open)" : "");
  out.found = fmt::format("{} GPUs, {}", topology.gpus.size(), driver);
  if (gpu.driver.empty()) {
    out.level = Level::kWarning;
    out.change = "load the NVIDIA driver, or train on the CPU";
    return out;
  }
  if (!pins(family)) {
    out.found += "; goes through pinned host memory";
    return out;
  }
  if (!gpu.peer_module.empty()) {
    out.found += fmt::format("; NICs reach it ({})", gpu.peer_module);
    return out;
  }
  std::vector<std::string> missing;
  if (std::pair(facts.fabric.major, facts.fabric.minor) < kFabricWithDmabuf)
    missing.emplace_back("libfabric 1.20 or newer");
  if (!gpu.open_driver || version(gpu.driver).first < kFirstDriverWithDmabuf)
    missing.emplace_back("the driver's open kernel modules, 515 or newer");
  if (version(facts.kernel) < kForkSafeKernel) missing.emplace_back("a kernel from 5.12 on");
  if (gpu.pci_p2pdma == Option::kNo) missing.emplace_back("CONFIG_PCI_P2PDMA");
  if (gpu.dmabuf_move_notify == Option::kNo) missing.emplace_back("CONFIG_DMABUF_MOVE_NOTIFY");
  if (missing.empty()) {
    out.found += "; NICs reach it (dmabuf)";
    return out;
  }
  out.level = Level::kWarning;
  out.found +=
      fmt::format("; goes through pinned host memory: no peer memory module, and dmabuf lacks {}",
                  fmt::join(missing, ", "));
  out.change = "modprobe nvidia_peermem, or add what dmabuf lacks";
  return out;
}

Finding check_open_files(const Facts& facts) {
  Finding out{.name = "open files",
              .found = facts.open_files == kUnlimited
                           ? "ulimit -n: unlimited"
                           : fmt::format("ulimit -n: {}", facts.open_files)};
  if (facts.open_files >= kManyFiles) return out;
  out.level = facts.open_files < kLeastFiles ? Level::kProblem : Level::kWarning;
  out.found += "; each peer takes a few";
  out.change = service_limit("-n 65536", "LimitNOFILE=65536", facts.open_files_hard);
  return out;
}

std::vector<Finding> check_all(const Facts& facts, const Topology& topology, const Intent& intent,
                               const NicOutcome& nics) {
  const std::string family = family_in_use(intent, nics);
  return {check_libfabric(facts.fabric, topology),
          check_nics(intent, nics, facts.fabric, topology),
          check_locked_memory(facts, family, intent.memory),
          check_open_files(facts),
          check_shared_memory(facts, family),
          check_huge_pages(facts.huge_pages),
          check_fork(facts, family),
          check_gpu_memory(facts, family, topology)};
}

bool ready(const std::vector<Finding>& findings) noexcept {
  return std::none_of(findings.begin(), findings.end(),
                      [](const Finding& f) { return f.level == Level::kProblem; });
}

}  // namespace leeway::doctor
