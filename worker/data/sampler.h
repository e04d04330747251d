// Which samples a worker computes in a step: a function of (seed, step, rank, world size) and of
// nothing else, so that a resumed run goes on with the data that it would have seen, and timing
// cannot reorder it.
//
//   epoch e is a permutation of all samples: Fisher-Yates from the last element down, with
//   Random(derive_seed(seed, e)) (worker/random.h): for i = n-1 .. 1: swap(p[i], p[below(i + 1)]).
//   Step c of it takes batch * world_size samples in a row; rank r's part is the r-th run of
//   `batch`.
//
// Every worker makes the same number of steps: the incomplete rest of an epoch is dropped (another
// one each time, since each epoch has its own permutation).
//
// A value; copies are independent. Not shared between threads: it caches the epoch's permutation.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/result.h"

namespace leeway::worker::data {

class Sampler {
 public:
  struct Options {
    std::uint64_t samples = 0;  // of the data set
    std::uint64_t batch = 0;    // samples of one worker's step
    std::uint32_t rank = 0;     // < world_size
    std::uint32_t world_size = 1;
    std::uint64_t seed = 1;
  };
  // Throws ConfigError when the data set is too small for one step of all workers.
  explicit Sampler(const Options& options);

  const Options& options() const noexcept { return options_; }
  std::uint64_t steps_per_epoch() const noexcept { return steps_per_epoch_; }
  std::uint64_t dropped_per_epoch() const noexcept;
  // This worker's samples of a step, `batch` of them; valid until the next call.
  std::span<const std::uint64_t> slice(std::uint64_t step);

 private:
  Options options_;
  std::uint64_t steps_per_epoch_ = 0;
  std::optional<std::uint64_t> cached_epoch_;
  std::vector<std::uint64_t> permutation_;  // of cached_epoch_
};

}  // namespace leeway::worker::data
