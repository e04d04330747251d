#include "server/update_rule.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace leeway::server {
namespace {

Sum sum_of(std::initializer_list<std::pair<std::uint64_t, std::uint64_t>> clock_and_staleness) {
  Sum sum;
  for (const auto& [clock, staleness] : clock_and_staleness)
    sum.contributions.push_back(
        {.step = {WorkerId(static_cast<std::uint32_t>(sum.contributions.size())), Clock(clock)},
         .staleness = staleness});
  sum.weight = 1.0f / static_cast<float>(sum.contributions.size());
  return sum;
}

JobSettings with(const std::map<std::string, std::string>& values) {
  return value_or_throw(JobSettings::from_values(values));
}

}  // namespace

TEST_CASE("without staleness and without a schedule an update is left alone, to the bit") {
  for (const JobSettings& settings :
       {JobSettings(), with({{"staleness_rate", "inverse"}, {"staleness_decay", "0.3"}})}) {
    UpdateRule rule(settings, Clock(0));
    for (const std::size_t workers : {1, 2, 3, 7, 31}) {
      Sum sum;
      sum.contributions.resize(workers);
      rule.weigh(sum);
      CHECK(sum.rate == 1.0f);
      for (const Contribution& contribution : sum.contributions) CHECK(contribution.factor == 1.0f);
    }
  }
}

TEST_CASE("the learning rate of a stale contribution is divided by 1 + its staleness") {
  UpdateRule rule(with({{"staleness_rate", "inverse"}}), Clock(0));
  Sum alone = sum_of({{5, 3}});
  rule.weigh(alone);
  CHECK(alone.rate == 0.25f);  // the rate, not the gradient: Adam would not notice the latter
  CHECK(alone.contributions[0].factor == 1.0f);

  Sum several = sum_of({{5, 0}, {5, 1}, {5, 3}});
  rule.weigh(several);
  const double rates[] = {1, 0.5, 0.25};
  for (std::size_t i = 0; i < 3; ++i)
    CHECK(several.rate * several.contributions[i].factor == doctest::Approx(rates[i]));
  CHECK(several.rate == doctest::Approx(1.75 / 3));
}

TEST_CASE("a stale gradient decays exponentially, and keeps the factor that it came with") {
  UpdateRule rule(with({{"staleness_decay", "0.5"}}), Clock(0));
  Sum sum = sum_of({{5, 0}, {5, 2}});
  sum.contributions[1].factor = 0.5f;
  rule.weigh(sum);
  CHECK(sum.rate == 1.0f);
  CHECK(sum.contributions[0].factor == 1.0f);
  CHECK(sum.contributions[1].factor == doctest::Approx(0.5 * std::exp(-1.0)));
}

TEST_CASE("a stale gradient fades to nothing at the cutoff") {
  UpdateRule rule(with({{"staleness_decay", "0.5"}, {"staleness_cutoff", "8"}}), Clock(0));
  Sum sum = sum_of({{9, 0}, {9, 2}, {9, 4}, {9, 7}, {9, 8}, {9, 1000}});
  rule.weigh(sum);
  CHECK(sum.contributions[0].factor == 1.0f);
  CHECK(sum.contributions[1].factor ==
        doctest::Approx((1 + std::sqrt(0.5)) / 2 * std::exp(-1.0)));  // cos of an eighth of a turn
  CHECK(sum.contributions[2].factor == doctest::Approx(0.5 * std::exp(-2.0)));
  CHECK(sum.contributions[3].factor > 0);
  CHECK(sum.contributions[4].factor == 0);
  CHECK(sum.contributions[5].factor == 0);
}

TEST_CASE("N8: the schedule follows the largest clock and never goes back") {
  UpdateRule rule(
      with({{"schedule", "step"}, {"schedule_steps", "10"}, {"schedule_factor", "0.5"}}), Clock(0));
  const auto rate_at = [&](std::uint64_t clock) {
    Sum sum = sum_of({{clock, 0}});
    rule.weigh(sum);
    return sum.rate;
  };
  CHECK(rate_at(9) == 1.0f);
  CHECK(rate_at(10) == 0.5f);
  CHECK(rate_at(3) == 0.5f);
  // Changed while the job runs; the clock stays.
  rule.change(with({{"learning_rate", "0.125"}, {"schedule", "step"}, {"schedule_steps", "5"}}));
  CHECK(rule.hyper().learning_rate == 0.125f);
  CHECK(rate_at(3) == doctest::Approx(0.01));
}

TEST_CASE("a restored job goes on at the clock of its fastest worker") {
  UpdateRule rule(
      with({{"schedule", "step"}, {"schedule_steps", "10"}, {"schedule_factor", "0.5"}}),
      Clock(20));
  Sum sum = sum_of({{7, 0}});
  rule.weigh(sum);
  CHECK(sum.rate == 0.25f);
}

TEST_CASE("1000 updates of stale gradients are the formulas in FP64, to 1e-6") {
  constexpr std::size_t kElements = 101;
  for (const std::string optimizer : {"sgd", "momentum", "adam"}) {
    CAPTURE(optimizer);
    const JobSettings settings = with({{"optimizer", optimizer},
                                       {"learning_rate", "0.002"},
                                       {"schedule", "cosine"},
                                       {"schedule_steps", "800"},
                                       {"warmup_steps", "50"},
                                       {"staleness_rate", "inverse"},
                                       {"staleness_decay", "0.2"},
                                       {"staleness_cutoff", "9"}});
    UpdateRule rule(settings, Clock(0));
    const kernels::Hyper& h = rule.hyper();
    std::mt19937 random(5);
    std::uniform_real_distribution<float> weight(1, 2), gradient(-1, 1);
    std::vector<float> w(kElements), m(kElements), v(kElements), g[2];
    for (float& x : w) x = weight(random);
    std::vector<double> w64(w.begin(), w.end()), m64(kElements), v64(kElements);
    for (std::uint64_t clock = 0; clock < 1000; ++clock) {
      Sum sum = sum_of({{clock, clock % 7}, {clock, clock % 3}});
      rule.weigh(sum);
      kernels::Gradient gradients[2];
      for (std::size_t n = 0; n < 2; ++n) {
        g[n].resize(kElements);
        for (float& x : g[n]) x = gradient(random);
        gradients[n] = {.data = reinterpret_cast<const std::byte*>(g[n].data()),
                        .codec = Codec::kF32,
                        .inverse_scale = sum.contributions[n].factor};
      }
      const kernels::UpdateArgs args{.gradients = gradients,
                                     .weight = sum.weight,
                                     .rate = sum.rate,
                                     .elements = kElements,
                                     .master = w.data(),
                                     .state = {m.data(), v.data()},
                                     .step = clock + 1};
      kernels::update(rule.optimizer(), h, {&args, 1});

      const double tau[] = {static_cast<double>(clock % 7), static_cast<double>(clock % 3)};
      const double mean = (1 / (1 + tau[0]) + 1 / (1 + tau[1])) / 2;
      double rate = h.learning_rate * mean;
      if (clock < 50) rate *= static_cast<double>(clock + 1) / 50;
      if (clock > 50) {
        const double way = std::min(static_cast<double>(clock - 50) / 750, 1.0);
        rate *= 0.1 + 0.9 * (1 + std::cos(3.14159265358979323846 * way)) / 2;
      }
      const double b1 = h.beta1, b2 = h.beta2, step = static_cast<double>(clock + 1);
      for (std::size_t i = 0; i < kElements; ++i) {
        double x = 0;
        for (std::size_t n = 0; n < 2; ++n)
          x += g[n][i] / (1 + tau[n]) / mean * std::exp(-0.2 * tau[n]) *
               (1 + std::cos(3.14159265358979323846 * tau[n] / 9)) / 4;
        if (optimizer == "sgd") {
          w64[i] -= rate * x;
        } else if (optimizer == "momentum") {
          m64[i] = h.momentum * m64[i] + x;
          w64[i] -= rate * m64[i];
        } else {
          m64[i] = b1 * m64[i] + (1 - b1) * x;
          v64[i] = b2 * v64[i] + (1 - b2) * x * x;
          w64[i] -= rate * (m64[i] / (1 - std::pow(b1, step))) /
                    (std::sqrt(v64[i] / (1 - std::pow(b2, step))) + h.epsilon);
        }
      }
    }
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < kElements; ++i) {
      difference += (w[i] - w64[i]) * (w[i] - w64[i]);
      size += w64[i] * w64[i];
    }
    CHECK(std::sqrt(difference / size) < 1e-6);
  }
}

}  // namespace leeway::server
