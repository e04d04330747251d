// What the processes of a push and pull measurement agree on. Plain data.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/half.h"
#include "common/ids.h"
#include "common/job_settings.h"

namespace leeway::bench {

inline constexpr std::uint64_t kJob = 0x6c656577;
inline constexpr float kLearningRate = 1.0f / 64;
inline constexpr float kScale = 2;

struct PushPullPlan {
  std::size_t elements = 0;  // of the model
  std::size_t tensors = 1;   // of one size; more than one are a partition each
  std::size_t partition_elements = 0;
  std::uint32_t servers = 1;
  bool step_core = false;
  bool checksum = false;           // with step_core
  std::string optimizer = "sgd";   // the servers'
  std::uint64_t memory_limit = 0;  // of each server, bytes; 0 = none
  unsigned threads = 0;            // that compute, of each server; 0 = one a core
  bool uniform = false;            // all gradients are alike
  std::vector<std::vector<std::byte>> server_addresses, worker_addresses;

  std::size_t partitions() const { return (elements - 1) / partition_elements + 1; }
  std::size_t begin(std::size_t p) const { return p * partition_elements; }
  std::size_t length(std::size_t p) const {
    return p + 1 < partitions() ? partition_elements : elements - begin(p);
  }
  std::size_t tensor_elements() const { return elements / tensors; }
  std::size_t tensor_of(std::size_t p) const { return tensors == 1 ? 0 : p; }
  // In the order of names, which is that of ids.
  std::string name_of(std::size_t tensor) const { return fmt::format("t{:06}", tensor); }
  std::uint32_t server_of(std::size_t p) const { return static_cast<std::uint32_t>(p % servers); }
};

inline Incarnation server_incarnation(std::uint32_t s) { return Incarnation(1 + s); }
inline Incarnation worker_incarnation(std::uint32_t w) { return Incarnation(1001 + w); }

// Of element i, in every step of every worker. Small integers: sums stay exact in FP32, and seven
// is prime to partition sizes, so a partition in another's place is seen.
inline float gradient_of(const PushPullPlan& plan, std::size_t i) {
  return plan.uniform ? 1 : static_cast<float>(i % 7) - 3;
}

// Of the job.
JobSettings settings_of(const PushPullPlan& plan);
// What elements 0 to 6 are, as they travel, after so many steps of all workers together; the others
// repeat them.
std::array<float, 7> weights_after(const PushPullPlan& plan, std::uint64_t steps);

}  // namespace leeway::bench
