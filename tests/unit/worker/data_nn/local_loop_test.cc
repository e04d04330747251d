#include "tests/unit/worker/data_nn/local_loop.h"

#include <doctest/doctest.h>

#include <cmath>

#include "worker/data/fashion_mnist.h"

namespace leeway::worker {
namespace {

// The first images of a data set.
class Subset final : public data::Dataset {
 public:
  Subset(data::FashionMnist::Part part, std::uint64_t samples)
      : whole_(value_or_throw(data::FashionMnist::open(data::kFashionMnistDirectory, part))),
        samples_(samples) {}
  std::uint64_t samples() const noexcept override { return samples_; }
  std::uint64_t features() const noexcept override { return whole_.features(); }
  std::uint32_t classes() const noexcept override { return whole_.classes(); }
  Status read(std::span<const std::uint64_t> indices, Half* features,
              std::int32_t* labels) const override {
    return whole_.read(indices, features, labels);
  }

 private:
  data::FashionMnist whole_;
  std::uint64_t samples_;
};

struct Subsets {
  Subset training{data::FashionMnist::Part::kTrain, 6000};
  Subset test{data::FashionMnist::Part::kTest, 2000};
};

LocalTrainingOptions small(const char* update) {
  LocalTrainingOptions options;
  options.settings.update.value = update;
  options.settings.learning_rate = 0.01;
  options.program.batch = 32;
  options.program.width = 64;
  options.program.epochs = 2;
  return options;
}

std::vector<std::vector<float>> masters(const LocalTrainingResult& result) {
  std::vector<std::vector<float>> values;
  for (const LocalTensor& tensor : result.tensors) values.push_back(tensor.master);
  return values;
}

}  // namespace

TEST_CASE("three workers learn, whatever rule merges their steps") {
  const Subsets sets;
  for (const char* update : {"per_push", "per_clock"}) {
    CAPTURE(update);
    auto options = small(update);
    if (options.settings.per_clock()) options.settings.learning_rate = 0.03;
    const auto result = local_training(sets.training, sets.test, options);
    CHECK(result.steps == 2 * 62);
    CHECK(result.skipped_steps == 0);
    CHECK(result.test.accuracy > 0.78);
    CHECK(result.losses.back() < result.losses.front() / 2);
  }
  auto stale = small("per_push");
  stale.settings.learning_rate = 0.004;
  stale.delay = 5;  // three workers, two of them a step behind
  CHECK(local_training(sets.training, sets.test, stale).test.accuracy > 0.6);
}

TEST_CASE("a run is a function of its seed") {
  const Subsets sets;
  auto options = small("per_clock");
  options.program.epochs = 1;
  const auto first = local_training(sets.training, sets.test, options);
  const auto second = local_training(sets.training, sets.test, options);
  CHECK(masters(first) == masters(second));
  CHECK(first.test.loss == second.test.loss);
  options.settings.seed = 2;
  CHECK(masters(first) != masters(local_training(sets.training, sets.test, options)));

  CHECK(first.tensors.size() == 6);
  CHECK(first.tensors[0].name == "hidden1.bias");
  CHECK(first.tensors[5].name == "output.weight");
  CHECK(first.tensors[5].shape == Shape{64, 10});
}

TEST_CASE("C1: one worker's job is plain training, three averaged are one with their batches") {
  const Subsets sets;
  auto one = small("per_clock");
  one.workers = 1;
  one.program.epochs = 1;
  auto same = one;
  same.settings.update.value = "per_push";
  const auto plain = local_training(sets.training, sets.test, one);
  CHECK(masters(plain) == masters(local_training(sets.training, sets.test, same)));

  auto three = small("per_clock");
  three.program.epochs = 1;
  one.program.batch = 96;
  auto parts = small("per_clock");
  parts.workers = 1;
  parts.program.epochs = 1;
  parts.program.accumulate = 3;
  const auto merged = local_training(sets.training, sets.test, three);
  const auto big = local_training(sets.training, sets.test, one);
  const auto accumulated = local_training(sets.training, sets.test, parts);
  for (const auto* other : {&merged, &accumulated}) {
    CHECK(other->steps == big.steps);
    // The same samples in the same order; only roundings to FP16 differ, and training grows them.
    for (std::size_t i = 0; i < 10; ++i)
      CHECK(other->losses[i] == doctest::Approx(big.losses[i]).epsilon(2e-3));
    CHECK(std::abs(other->test.accuracy - big.test.accuracy) < 0.03);
  }
}

TEST_CASE("N4: a step with a gradient beyond FP16 is skipped and counted, training goes on") {
  const Subsets sets;
  auto options = small("per_clock");
  options.program.epochs = 1;
  options.settings.loss_scale_initial = 0x1p22;
  const auto result = local_training(sets.training, sets.test, options);
  CHECK(result.skipped_steps > 0);
  CHECK(result.skipped_steps < 30);
  CHECK(result.losses.back() < result.losses.front());
  for (const auto& values : masters(result))
    for (float value : values) REQUIRE(std::isfinite(value));
}

}  // namespace leeway::worker
