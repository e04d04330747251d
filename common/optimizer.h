// Which update rules the servers have: their names in settings and how many FP32 arrays each keeps
// beside the weights. Memory, checkpoints, settings and kernels all read this table; the formulas
// are in kernels/optimizer.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace leeway {

enum class Optimizer : std::uint8_t {
  kSgd = 1,
  kMomentum = 2,
  kAdam = 3,
  kNesterov = 4,
  kAdamW = 5,
  kAdagrad = 6,
  kDelayedNesterov = 7,
  kLamb = 8,
};

struct OptimizerKind {
  Optimizer optimizer;
  std::string_view name;
  int state_arrays;  // 0, 1 (m) or 2 (m, v)
};

inline constexpr OptimizerKind kOptimizerKinds[] = {
    {Optimizer::kSgd, "sgd", 0},           {Optimizer::kMomentum, "momentum", 1},
    {Optimizer::kNesterov, "nesterov", 1}, {Optimizer::kDelayedNesterov, "delayed_nesterov", 2},
    {Optimizer::kAdagrad, "adagrad", 1},   {Optimizer::kAdam, "adam", 2},
    {Optimizer::kAdamW, "adamw", 2},       {Optimizer::kLamb, "lamb", 2},
};

constexpr const OptimizerKind& kind_of(Optimizer optimizer) noexcept {
  for (const OptimizerKind& kind : kOptimizerKinds)
    if (kind.optimizer == optimizer) return kind;
  return kOptimizerKinds[0];
}

constexpr int state_arrays(Optimizer optimizer) noexcept { return kind_of(optimizer).state_arrays; }

inline std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const OptimizerKind& kind : kOptimizerKinds) names.emplace_back(kind.name);
  return names;
}

}  // namespace leeway
