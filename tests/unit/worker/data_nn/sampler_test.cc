#include "worker/data/sampler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

namespace leeway::worker::data {
namespace {

std::vector<std::uint64_t> copy(std::span<const std::uint64_t> slice) {
  return {slice.begin(), slice.end()};
}

}  // namespace

TEST_CASE("an epoch is partitioned among steps and workers") {
  for (const std::uint32_t world : {1u, 3u, 7u}) {
    std::vector<Sampler> samplers;
    for (std::uint32_t rank = 0; rank < world; ++rank)
      samplers.emplace_back(Sampler::Options{
          .samples = 1000, .batch = 16, .rank = rank, .world_size = world, .seed = 5});
    const std::uint64_t steps = samplers[0].steps_per_epoch();
    CHECK(steps == 1000 / (16 * world));
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
      std::set<std::uint64_t> seen;
      for (std::uint64_t step = epoch * steps; step < (epoch + 1) * steps; ++step)
        for (Sampler& sampler : samplers)
          for (std::uint64_t index : sampler.slice(step)) {
            CHECK(index < 1000);
            CHECK(seen.insert(index).second);
          }
      CHECK(seen.size() == steps * 16 * world);
      CHECK(seen.size() + samplers[0].dropped_per_epoch() == 1000);
    }
  }
}

TEST_CASE("a slice depends on seed, epoch, step, rank and world size alone") {
  const Sampler::Options options{
      .samples = 999, .batch = 10, .rank = 1, .world_size = 2, .seed = 3};
  Sampler forwards(options), backwards(options);
  std::vector<std::vector<std::uint64_t>> slices;
  for (std::uint64_t step = 0; step < 120; ++step) slices.push_back(copy(forwards.slice(step)));
  for (std::uint64_t step = 120; step-- > 0;) CHECK(copy(backwards.slice(step)) == slices[step]);

  Sampler other_seed({.samples = 999, .batch = 10, .rank = 1, .world_size = 2, .seed = 4});
  CHECK(copy(other_seed.slice(0)) != slices[0]);
  CHECK(slices[0] != slices[forwards.steps_per_epoch()]);  // another epoch, another order

  // The workers' slices of a step are those of one worker with all their samples.
  Sampler whole({.samples = 999, .batch = 20, .rank = 0, .world_size = 1, .seed = 3});
  for (std::uint64_t step : {0u, 7u, 49u}) {
    const auto both = copy(whole.slice(step));
    CHECK(std::equal(both.begin() + 10, both.end(), slices[step].begin()));
  }
}

TEST_CASE("the order of the data is the same on every machine and in every release") {
  Sampler sampler({.samples = 10, .batch = 10, .rank = 0, .world_size = 1, .seed = 1});
  CHECK(copy(sampler.slice(0)) == std::vector<std::uint64_t>{7, 2, 6, 8, 0, 1, 5, 9, 3, 4});
  CHECK(copy(sampler.slice(1)) == std::vector<std::uint64_t>{9, 2, 6, 4, 3, 8, 0, 5, 7, 1});
}

TEST_CASE("every permutation is as likely as another") {
  std::vector<int> count(6);
  const std::vector<std::vector<std::uint64_t>> all{{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                                    {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  Sampler sampler({.samples = 3, .batch = 3, .rank = 0, .world_size = 1, .seed = 11});
  for (std::uint64_t epoch = 0; epoch < 6000; ++epoch)
    ++count[static_cast<std::size_t>(std::ranges::find(all, copy(sampler.slice(epoch))) -
                                     all.begin())];
  for (int c : count) CHECK(std::abs(c - 1000) < 120);  // four standard deviations
}

TEST_CASE("a data set without a whole step is refused") {
  CHECK_THROWS_AS(Sampler({.samples = 99, .batch = 50, .rank = 0, .world_size = 2}), ConfigError);
  CHECK_THROWS_AS(Sampler({.samples = 99, .batch = 0, .rank = 0, .world_size = 1}), ConfigError);
  CHECK_THROWS_AS(Sampler({.samples = 99, .batch = 1, .rank = 2, .world_size = 2}), ConfigError);
  CHECK_THROWS_AS(
      Sampler({.samples = 99, .batch = UINT64_MAX, .rank = 0, .world_size = UINT32_MAX}),
      ConfigError);
  CHECK(Sampler({.samples = 100, .batch = 50, .rank = 0, .world_size = 2}).steps_per_epoch() == 1);
}

}  // namespace leeway::worker::data
