#include "transport/doctor/facts.h"

#include <fcntl.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <zlib.h>

#include <array>
#include <charconv>
#include <fstream>
#include <memory>
#include <string_view>

#include "transport/doctor/fabric_facts.h"
#include "transport/gpu_path.h"
#include "transport/inventory_netdevs.h"

namespace leeway::doctor {
namespace {

namespace fs = std::filesystem;
using transport::read_line;

constexpr unsigned kCapIpcLock = 14;
constexpr std::size_t kLongestConfig = 4 << 20;

std::uint64_t number(std::string_view text, int base = 10) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return 0;
  text.remove_prefix(begin);
  std::uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, base);
  return value;
}

// The rest of the line that begins with `key`.
std::string value_of(const fs::path& file, std::string_view key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key)) return line.substr(key.size());
  return "";
}

std::uint64_t limit(rlim_t value) { return value == RLIM_INFINITY ? kUnlimited : value; }

// The kernel's configuration, or nothing. gzopen reads plain text too.
std::string kernel_config(const fs::path& root, const std::string& kernel) {
  for (const fs::path& file : {root / ("boot/config-" + kernel), root / "proc/config.gz"}) {
    const std::unique_ptr<gzFile_s, int (*)(gzFile)> in(gzopen(file.c_str(), "rb"), gzclose);
    if (!in) continue;
    std::string text;
    std::array<char, 16384> part;
    int got = 0;
    while (text.size() < kLongestConfig &&
           (got = gzread(in.get(), part.data(), static_cast<unsigned>(part.size()))) > 0)
      text.append(part.data(), static_cast<std::size_t>(got));
    if (!text.empty()) return "\n" + text;
  }
  return "";
}

Option option(const std::string& config, const std::string& name) {
  if (config.empty()) return Option::kUnknown;
  return config.find("\n" + name + "=y\n") != std::string::npos ? Option::kYes : Option::kNo;
}

ForkSafety fork_safety() {
  switch (ibv_is_fork_initialized()) {
    case IBV_FORK_ENABLED:
      return ForkSafety::kOn;
    case IBV_FORK_UNNEEDED:
      return ForkSafety::kNotNeeded;
    case IBV_FORK_DISABLED:
      break;
  }
  return ForkSafety::kOff;
}

bool makes_sealed_memory() {
  const int descriptor = memfd_create("leeway-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) return false;
  const bool sealed = fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK) == 0;
  close(descriptor);
  return sealed;
}

}  // namespace

HugePageFacts read_huge_pages(const fs::path& root) {
  HugePageFacts out;
  const fs::path meminfo = root / "proc/meminfo";
  out.reserved = number(value_of(meminfo, "HugePages_Total:"));
  out.free = number(value_of(meminfo, "HugePages_Free:"));
  out.page_bytes = number(value_of(meminfo, "Hugepagesize:")) * 1024;
  const std::string modes = read_line(root / "sys/kernel/mm/transparent_hugepage/enabled");
  if (const std::size_t begin = modes.find('['); begin != std::string::npos)
    out.transparent = modes.substr(begin + 1, modes.find(']') - begin - 1);
  return out;
}

GpuFacts read_gpu_facts(const fs::path& root, const std::string& kernel) {
  GpuFacts out;
  out.driver = read_line(root / "sys/module/nvidia/version");
  out.open_driver =
      read_line(root / "proc/driver/nvidia/version").find("Open Kernel") != std::string::npos;
  out.peer_module = transport::gpu_peer_module(root);
  const std::string config = kernel_config(root, kernel);
  out.dmabuf_move_notify = option(config, "CONFIG_DMABUF_MOVE_NOTIFY");
  out.pci_p2pdma = option(config, "CONFIG_PCI_P2PDMA");
  return out;
}

bool has_capability(const fs::path& root, unsigned bit) {
  return (number(value_of(root / "proc/self/status", "CapEff:"), 16) >> bit & 1) != 0;
}

Facts read_facts() {
  const fs::path root = "/";
  Facts out;
  utsname name{};
  if (uname(&name) == 0) out.kernel = name.release;
  rlimit value{};
  if (getrlimit(RLIMIT_MEMLOCK, &value) == 0) {
    out.locked_memory = limit(value.rlim_cur);
    out.locked_memory_hard = limit(value.rlim_max);
  }
  if (getrlimit(RLIMIT_NOFILE, &value) == 0) {
    out.open_files = limit(value.rlim_cur);
    out.open_files_hard = limit(value.rlim_max);
  }
  out.may_lock_all = has_capability(root, kCapIpcLock);
  out.sealed_memory = makes_sealed_memory();
  out.huge_pages = read_huge_pages(root);
  out.gpu = read_gpu_facts(root, out.kernel);
  out.fabric = read_fabric();
  out.fork = fork_safety();  // after libibverbs has read its environment
  return out;
}

}  // namespace leeway::doctor
