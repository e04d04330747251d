#include "worker/data/sampler.h"

#include <fmt/format.h>

#include <numeric>
#include <utility>

#include "worker/random.h"

namespace leeway::worker::data {

Sampler::Sampler(const Options& options) : options_(options) {
  if (options.world_size == 0 || options.rank >= options.world_size)
    throw ConfigError(
        fmt::format("rank {} of {} workers: ranks count from 0", options.rank, options.world_size));
  // Divisions, because batch * world_size may be beyond 64 bits.
  if (options.batch > 0) steps_per_epoch_ = options.samples / options.batch / options.world_size;
  if (steps_per_epoch_ == 0)
    throw ConfigError(fmt::format(
        "a data set of {} samples has no step of {} workers with {} "
        "samples each; use a batch between 1 and {}",
        options.samples, options.world_size, options.batch, options.samples / options.world_size));
}

std::uint64_t Sampler::dropped_per_epoch() const noexcept {
  return options_.samples - steps_per_epoch_ * options_.batch * options_.world_size;
}

std::span<const std::uint64_t> Sampler::slice(std::uint64_t step) {
  const std::uint64_t epoch = step / steps_per_epoch_;
  if (cached_epoch_ != epoch) {
    permutation_.resize(options_.samples);
    std::iota(permutation_.begin(), permutation_.end(), std::uint64_t{0});
    Random random(derive_seed(options_.seed, epoch));
    for (std::uint64_t i = options_.samples - 1; i > 0; --i)
      std::swap(permutation_[i], permutation_[random.below(i + 1)]);
    cached_epoch_ = epoch;
  }
  const std::uint64_t within = step % steps_per_epoch_;
  const std::uint64_t first = (within * options_.world_size + options_.rank) * options_.batch;
  return std::span(permutation_).subspan(first, options_.batch);
}

}  // namespace leeway::worker::data
