#include "server/update_rule.h"

#include <doctest/doctest.h>

#include <cmath>

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

}  // namespace leeway::server
