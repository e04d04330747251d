// What stands in the way of a job on this machine, and what to change: from facts alone.
// Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transport/doctor/facts.h"
#include "transport/nic_choice.h"

namespace leeway::doctor {

enum class Level {
  kOk,
  kWarning,  // a job runs, but slower or with less than it could have
  kProblem,  // a job would not start, or fail
};
std::string_view to_string(Level level) noexcept;

struct Finding {
  std::string name;
  Level level = Level::kOk;
  std::string found;
  std::string change;  // empty: nothing to change
};

// What the job is to be.
struct Intent {
  std::string fabric = "auto";          // auto | efa | verbs | tcp | shm
  std::optional<std::uint64_t> memory;  // bytes that one process will register
};

// The choice for `intent`, or why there is none. With shm there is neither.
struct NicOutcome {
  std::optional<transport::NicChoice> choice;
  std::string error;
};

// Families of NICs that there is a way to here, tcp and what libfabric offers: the last word of
// RailRequest.
std::vector<transport::Family> offered_families(const FabricFacts& fabric);

// The family that a job would use, "" when it could use none.
std::string family_in_use(const Intent& intent, const NicOutcome& nics);

Finding check_libfabric(const FabricFacts& fabric, const transport::Topology& topology);
Finding check_nics(const Intent& intent, const NicOutcome& nics, const FabricFacts& fabric,
                   const transport::Topology& topology);
Finding check_locked_memory(const Facts& facts, std::string_view family,
                            std::optional<std::uint64_t> memory);
Finding check_shared_memory(const Facts& facts, std::string_view family);
Finding check_huge_pages(const HugePageFacts& pages);
Finding check_fork(const Facts& facts, std::string_view family);
Finding check_gpu_memory(const Facts& facts, std::string_view family,
                         const transport::Topology& topology);
Finding check_open_files(const Facts& facts);

// All of them, in the order in which to mend things.
std::vector<Finding> check_all(const Facts& facts, const transport::Topology& topology,
                               const Intent& intent, const NicOutcome& nics);

bool ready(const std::vector<Finding>& findings) noexcept;  // no problem among them

// "64 MiB", "unlimited"
std::string print_bytes(std::uint64_t bytes);

}  // namespace leeway::doctor
