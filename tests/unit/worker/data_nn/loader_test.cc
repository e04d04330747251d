#include "worker/data/loader.h"

#include <doctest/doctest.h>

#include <atomic>

namespace leeway::worker::data {
namespace {

// Sample i has the features {i, -1} and the label i % 10.
class CountingSet : public Dataset {
 public:
  std::uint64_t samples() const noexcept override { return 1000; }
  std::uint64_t features() const noexcept override { return 2; }
  std::uint32_t classes() const noexcept override { return 10; }
  Status read(std::span<const std::uint64_t> indices, Half* features,
              std::int32_t* labels) const override {
    ++reads;
    for (std::uint64_t index : indices) {
      *features++ = to_half(static_cast<float>(index));
      *features++ = to_half(-1.0f);
      *labels++ = static_cast<std::int32_t>(index % 10);
    }
    return {};
  }
  mutable std::atomic<int> reads{0};
};

Sampler sampler(std::uint64_t batch = 8) {
  return Sampler({.samples = 1000, .batch = batch, .rank = 1, .world_size = 2, .seed = 9});
}

// The batches of steps first .. end-1 as they should be.
void check_batches(Loader& loader, std::uint64_t first, std::uint64_t end) {
  Sampler expected = sampler();
  for (std::uint64_t step = first; step < end; ++step) {
    const auto batch = loader.next();
    REQUIRE(batch);
    REQUIRE(*batch != nullptr);
    CHECK((*batch)->step == step);
    CHECK((*batch)->rows == 8);
    const auto slice = expected.slice(step);
    for (std::size_t i = 0; i < slice.size(); ++i) {
      CHECK(to_float((*batch)->features[2 * i]) == static_cast<float>(slice[i]));
      CHECK((*batch)->labels[i] == static_cast<std::int32_t>(slice[i] % 10));
    }
  }
}

}  // namespace

TEST_CASE("a loader gives each step's batch in order, from any step on, with any threads") {
  const CountingSet set;
  for (const std::uint32_t threads : {1u, 3u})
    for (const std::uint64_t first : {0u, 61u, 300u}) {  // 62 steps are an epoch
      Loader loader(set, sampler(),
                    {.first_step = first, .end_step = 301, .ahead = 3, .threads = threads});
      check_batches(loader, first, 301);
      CHECK(loader.next().value() == nullptr);
      CHECK(loader.next().value() == nullptr);
    }
  Loader nothing(set, sampler(), {.first_step = 5, .end_step = 5});
  CHECK(nothing.next().value() == nullptr);
  Loader past(set, sampler(), {.first_step = 9, .end_step = 5});
  CHECK(past.next().value() == nullptr);
}

TEST_CASE("a loader reads no further ahead than it may and stops when it is told") {
  const CountingSet set;
  {
    Loader loader(set, sampler(),
                  {.first_step = 0, .end_step = 1'000'000, .ahead = 4, .threads = 2});
    check_batches(loader, 0, 10);
    // The program holds batch 9; nobody may have begun one beyond 9 + 3.
    while (set.reads < 13) std::this_thread::yield();
  }
  CHECK(set.reads == 13);
}

TEST_CASE("a loader counts how long the program waited") {
  struct SlowSet : CountingSet {
    Status read(std::span<const std::uint64_t> indices, Half* features,
                std::int32_t* labels) const override {
      const TimePoint ready = MonotonicClock::now() + milliseconds(1);
      while (MonotonicClock::now() < ready) std::this_thread::yield();
      return CountingSet::read(indices, features, labels);
    }
  };
  const SlowSet set;
  const TimePoint begin = MonotonicClock::now();
  Loader loader(set, sampler(), {.first_step = 0, .end_step = 1000});
  CHECK(loader.take_seconds_waited() == 0);
  // A program that asks faster than one batch a millisecond waits sooner or later.
  double waited = 0;
  while (waited == 0 && loader.next().value() != nullptr) waited = loader.take_seconds_waited();
  CHECK(waited > 0);
  CHECK(waited <= seconds_between(begin, MonotonicClock::now()));
  CHECK(loader.take_seconds_waited() == 0);
}

TEST_CASE("an error of the data set comes with its step, and stays") {
  struct BrokenSet : CountingSet {
    Status read(std::span<const std::uint64_t> indices, Half* features,
                std::int32_t* labels) const override {
      Sampler expected = sampler();
      const auto broken = expected.slice(5);
      if (indices[0] == broken[0]) return fail(Code::kDataLoss, "set.idx: sample is damaged");
      return CountingSet::read(indices, features, labels);
    }
  };
  const BrokenSet set;
  Loader loader(set, sampler(), {.first_step = 0, .end_step = 100, .ahead = 8, .threads = 2});
  check_batches(loader, 0, 5);
  for (int i = 0; i < 2; ++i) {
    const auto batch = loader.next();
    REQUIRE_FALSE(batch);
    CHECK(batch.error().message == "set.idx: sample is damaged");
  }
}

}  // namespace leeway::worker::data
