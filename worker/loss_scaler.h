// Dynamic loss scaling of one worker: the loss is multiplied by a power of two so that small
// gradients survive FP16. Finite steps let the scale grow, a non-finite one halves it, both within
// the job's bounds (Micikevicius et al. 2018, "Mixed precision training", section 3.2).
//
// Called from the program's thread. A plain value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/result.h"

namespace leeway::worker {

class LossScaler {
 public:
  struct Limits {
    double initial = 1024;
    double min = 1;
    double max = 16777216;
    std::uint32_t growth_interval = 1000;  // finite steps in a row that double the scale
  };

  explicit LossScaler(const Limits& limits);

  double scale() const noexcept { return scale_; }
  // A step ended with finite gradients, or was skipped. kInvalidArgument when it was skipped at the
  // lower bound: no smaller scale is left to try, so the gradients themselves are wrong.
  Status finished(bool finite);

  // As it goes into checkpoints: 8 scale (f64) | 4 finite steps in a row, little-endian.
  std::vector<std::byte> save() const;
  // kDataLoss when the bytes are not of save(). A scale outside today's bounds is moved inside.
  Status restore(std::span<const std::byte> state);

 private:
  Limits limits_;
  double scale_;
  std::uint32_t finite_in_a_row_ = 0;
};

}  // namespace leeway::worker
