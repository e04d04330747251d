// Training over a fabric that keeps no order, gives messages twice and holds everything back: the
// same weights as over one that behaves. What EFA may do, without EFA.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/conformance/fabric.h"
#include "tests/conformance/hostile_rail.h"
#include "tests/conformance/loopback_rail.h"
#include "tests/conformance/training_cluster.h"
#include "transport/endpoint_impl.h"

namespace leeway::conformance {
namespace {

constexpr std::uint64_t kSteps = 5;

struct Trained {
  std::string problem;
  std::vector<std::vector<float>> weights;  // by worker
};

Trained train(TrainingOptions options, const Hostility& mood, std::uint64_t seed,
              const TrainingCluster::Gradient& gradient) {
  options.steps = kSteps;
  options.open = [&, opened = std::uint64_t{0}]() mutable {
    std::vector<std::unique_ptr<transport::Rail>> rails;
    rails.push_back(std::make_unique<HostileRail>(std::make_unique<LoopbackRail>(),
                                                  seed * 100 + opened++, mood));
    return transport::endpoint_over(std::move(rails), {.fabric = "hostile", .max_transfer = 400});
  };
  TrainingCluster cluster(options);
  Trained trained;
  trained.problem = cluster.train(gradient);
  trained.weights = cluster.final_weights();
  return trained;
}

// Depends on what was pulled, so that old weights or a lost step would show.
void coupled(std::size_t rank, std::uint64_t step, std::span<const float> weights,
             std::span<float> gradient) {
  for (std::size_t i = 0; i < weights.size(); ++i)
    gradient[i] = weights[i] * 0.125f + static_cast<float>((rank + 1) * (step + 1) % 7) * 0.25f;
}

void ones(std::size_t, std::uint64_t, std::span<const float>, std::span<float> gradient) {
  std::ranges::fill(gradient, 1.0f);
}

}  // namespace

TEST_CASE("training over the hostile fabric, by clocks: bit by bit what it is without hostility") {
  if (!fabric().hostile()) return;
  const TrainingOptions options{.per_clock = true, .staleness = 0};
  const Trained calm = train(options, Hostility{}, 0, coupled);
  REQUIRE_MESSAGE(calm.problem.empty(), calm.problem);
  REQUIRE(calm.weights[0] == calm.weights[1]);
  for (std::uint64_t seed = fabric().seed; seed < fabric().seed + fabric().seeds; ++seed) {
    INFO("seed ", seed);
    const Trained trained = train(options, Hostility::drawn(seed), seed, coupled);
    REQUIRE_MESSAGE(trained.problem.empty(), trained.problem);
    REQUIRE(trained.weights == calm.weights);
  }
}

TEST_CASE("training over the hostile fabric, by pushes: each step counts once") {
  if (!fabric().hostile()) return;
  for (std::uint64_t seed = fabric().seed; seed < fabric().seed + fabric().seeds; ++seed) {
    INFO("seed ", seed);
    const TrainingOptions options{.per_clock = false, .staleness = seed % 3};
    const Trained trained = train(options, Hostility::drawn(seed), seed, ones);
    REQUIRE_MESSAGE(trained.problem.empty(), trained.problem);
    const auto pushed = static_cast<float>(kSteps * options.workers);
    std::size_t wrong = 0;
    for (const auto& weights : trained.weights) {
      std::size_t place = 0;
      for (const std::int64_t size : kTensors)
        for (std::size_t i = 0; i < static_cast<std::size_t>(size); ++i)
          wrong += weights[place++] != TrainingCluster::initial_value(i) - pushed;
    }
    REQUIRE(wrong == 0);
  }
}

}  // namespace leeway::conformance
