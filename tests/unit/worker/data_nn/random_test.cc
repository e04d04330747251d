#include "worker/random.h"

#include <doctest/doctest.h>

#include <cmath>

#include "worker/nn/initialize.h"

namespace leeway::worker {

TEST_CASE("the generator is SplitMix64") {
  Random random(1234567);  // the reference values of its authors
  for (std::uint64_t expected :
       {6457827717110365317u, 3203168211198807973u, 9817491932198370423u, 4593380528125082431u})
    CHECK(random.next() == expected);
}

TEST_CASE("He normal: by seed and name alone, with the deviation that its fan-in asks") {
  const Shape shape{400, 100};
  const auto values = nn::he_normal(1, "fc.weight", shape, 400);
  CHECK(values == nn::he_normal(1, "fc.weight", shape, 400));
  CHECK(values != nn::he_normal(2, "fc.weight", shape, 400));
  CHECK(values != nn::he_normal(1, "fc2.weight", shape, 400));
  double sum = 0, squares = 0, fourth = 0;
  for (float v : values) {
    sum += v;
    squares += double{v} * v;
    fourth += std::pow(double{v}, 4);
  }
  const double n = static_cast<double>(values.size());
  const double variance = squares / n;
  CHECK(std::abs(sum / n) < 4 * std::sqrt(variance / n));
  CHECK(variance == doctest::Approx(2.0 / 400).epsilon(0.03));
  CHECK(fourth / n == doctest::Approx(3 * variance * variance).epsilon(0.06));  // of a normal
  CHECK(nn::he_normal(1, "empty", {0, 128}, 0).empty());
}

}  // namespace leeway::worker
