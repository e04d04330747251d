// What leeway-doctor looks at beside the NICs: limits, kernel settings, drivers, libraries. Plain
// values, so that the checks can be tested for machines that are elsewhere; the reader is thin.
//
// Called from main, from one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "transport/topology.h"

namespace leeway::doctor {

inline constexpr std::uint64_t kUnlimited = UINT64_MAX;

struct HugePageFacts {
  std::uint64_t reserved = 0, free = 0, page_bytes = 0;
  std::string transparent;  // always | madvise | never; empty: the kernel has none
};

enum class ForkSafety { kOff, kOn, kNotNeeded };

// What the kernel was built with, as far as that can be read.
enum class Option { kYes, kNo, kUnknown };

struct GpuFacts {
  std::string driver;        // version; empty: not loaded
  bool open_driver = false;  // the open kernel modules, which export dmabuf
  std::string peer_module;   // the module that lets NICs reach GPU memory; empty: none is loaded
  Option dmabuf_move_notify = Option::kUnknown;
  Option pci_p2pdma = Option::kUnknown;
};

// A provider that fi_getinfo names for a family.
struct Offer {
  std::string family;    // efa | verbs
  std::string provider;  // libfabric's name
  std::vector<std::string> domains;
};

struct FabricFacts {
  int major = 0, minor = 0;
  std::vector<Offer> offers;
};

struct Facts {
  std::string kernel;  // release
  std::uint64_t locked_memory = 0, locked_memory_hard = 0;
  std::uint64_t open_files = 0, open_files_hard = 0;
  bool may_lock_all = false;   // CAP_IPC_LOCK: the limit does not apply
  bool sealed_memory = false;  // memfd_create with seals works
  HugePageFacts huge_pages;
  ForkSafety fork = ForkSafety::kOff;
  GpuFacts gpu;
  FabricFacts fabric;
};

Facts read_facts();

// Parts of it that read files, for tests; `root` is "/" else.
HugePageFacts read_huge_pages(const std::filesystem::path& root);
GpuFacts read_gpu_facts(const std::filesystem::path& root, const std::string& kernel);
// Whether CAP_... number `bit` is in the effective set.
bool has_capability(const std::filesystem::path& root, unsigned bit);

}  // namespace leeway::doctor
