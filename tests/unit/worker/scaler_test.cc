#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "common/half.h"
#include "worker/loss_scaler.h"

namespace leeway::worker {
namespace {

LossScaler::Limits limits(double initial, std::uint32_t growth) {
  return {.initial = initial, .min = 1, .max = 65536, .growth_interval = growth};
}

// One step of w -= lr * mean(gradients), each gradient in FP16 under its worker's scale.
float sgd(float w, float gradient, double scale) {
  const Half sent = to_half(gradient * static_cast<float>(scale));
  return w - 0.125f * (to_float(sent) / static_cast<float>(scale));
}

}  // namespace

TEST_CASE("N1: a scale that grows each step is capped and finite") {
  LossScaler scaler(limits(1024, 1));
  double last = scaler.scale();
  for (int step = 0; step < 300; ++step) {
    REQUIRE(scaler.finished(true));
    CHECK(scaler.scale() >= last);
    last = scaler.scale();
  }
  CHECK(scaler.scale() == 65536);
}

TEST_CASE("N2: not finite at the lower bound is the end, with the scale where it was") {
  LossScaler scaler(limits(8, 10));
  for (double expected : {4.0, 2.0, 1.0}) {
    REQUIRE(scaler.finished(false));
    CHECK(scaler.scale() == expected);
  }
  const auto status = scaler.finished(false);
  REQUIRE(!status);
  CHECK(status.error().message.starts_with("the loss scale is at its minimum (1)"));
  CHECK(status.error().message.find("still not finite") != std::string::npos);
  CHECK(scaler.scale() == 1);
}

TEST_CASE("N3: workers at different scales reach what equal scales reach") {
  float equal = 1, different = 1;
  for (int step = 0; step < 64; ++step) {
    const float gradient = std::ldexp(1.0f + static_cast<float>(step % 7) / 8, -6);
    for (double scale : {256.0, 256.0}) equal = sgd(equal, gradient, scale);
    for (double scale : {256.0, 65536.0}) different = sgd(different, gradient, scale);
  }
  CHECK(equal == different);
  CHECK(equal != 1);
}

TEST_CASE("the scale doubles after growth_interval finite steps in a row, and a skip starts over") {
  LossScaler scaler(limits(1024, 3));
  for (bool finite : {true, true, false, true, true}) REQUIRE(scaler.finished(finite));
  CHECK(scaler.scale() == 512);
  REQUIRE(scaler.finished(true));
  CHECK(scaler.scale() == 1024);
}

TEST_CASE("a restored scaler goes on as the saved one") {
  LossScaler scaler(limits(1024, 3)), restored(limits(64, 3));
  for (bool finite : {true, false, true, true}) REQUIRE(scaler.finished(finite));
  REQUIRE(restored.restore(scaler.save()));
  CHECK(restored.scale() == 512);
  REQUIRE(restored.finished(true));
  CHECK(restored.scale() == 1024);
}

TEST_CASE("damaged state is refused, and a scale outside today's bounds is moved inside") {
  LossScaler scaler(limits(1024, 3));
  CHECK(!scaler.restore({}));
  auto state = scaler.save();
  state.push_back(std::byte{0});
  CHECK(!scaler.restore(state));
  LossScaler bad({.initial = std::numeric_limits<double>::quiet_NaN()});
  CHECK(!scaler.restore(bad.save()));
  CHECK(scaler.scale() == 1024);
  LossScaler high({.initial = 1u << 20});
  REQUIRE(scaler.restore(high.save()));
  CHECK(scaler.scale() == 65536);
}

}  // namespace leeway::worker
