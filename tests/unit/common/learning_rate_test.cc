#include "common/learning_rate.h"

#include <doctest/doctest.h>

namespace leeway {
namespace {

JobSettings with(const std::map<std::string, std::string>& values) {
  return value_or_throw(JobSettings::from_values(values));
}

TEST_CASE("without a schedule the learning rate stays what it is") {
  const JobSettings settings;
  CHECK(settings.check().has_value());
  for (const std::uint64_t clock : {0ull, 1ull, 1000000ull})
    CHECK(learning_rate_factor(settings, clock) == 1);
}

TEST_CASE("N8: a step schedule falls at its clock, not before and not after") {
  const JobSettings settings =
      with({{"schedule", "step"}, {"schedule_steps", "10"}, {"schedule_factor", "0.5"}});
  CHECK(learning_rate_factor(settings, 0) == 1);
  CHECK(learning_rate_factor(settings, 9) == 1);
  CHECK(learning_rate_factor(settings, 10) == 0.5);
  CHECK(learning_rate_factor(settings, 19) == 0.5);
  CHECK(learning_rate_factor(settings, 20) == 0.25);
  CHECK(learning_rate_factor(settings, UINT64_MAX) == 0);
}

TEST_CASE("warm-up climbs in equal parts and ends where the schedule begins") {
  const JobSettings settings = with({{"warmup_steps", "4"}});
  const double expected[] = {0.25, 0.5, 0.75, 1, 1, 1};
  for (std::uint64_t clock = 0; clock < 6; ++clock)
    CHECK(learning_rate_factor(settings, clock) == expected[clock]);
}

TEST_CASE("linear and cosine go from the end of the warm-up to the factor at the last step") {
  std::map<std::string, std::string> values{{"schedule", "linear"},
                                            {"schedule_steps", "110"},
                                            {"warmup_steps", "10"},
                                            {"schedule_factor", "0.1"}};
  const JobSettings line = with(values);
  values["schedule"] = "cosine";
  const JobSettings cosine = with(values);
  for (const JobSettings* settings : {&line, &cosine}) {
    CHECK(settings->check().has_value());
    CHECK(learning_rate_factor(*settings, 10) == 1);
    CHECK(learning_rate_factor(*settings, 60) == doctest::Approx(0.55));
    CHECK(learning_rate_factor(*settings, 110) == doctest::Approx(0.1));
    CHECK(learning_rate_factor(*settings, 100000) == doctest::Approx(0.1));
    for (std::uint64_t clock = 10; clock < 110; ++clock)
      CHECK(learning_rate_factor(*settings, clock) > learning_rate_factor(*settings, clock + 1));
  }
  CHECK(learning_rate_factor(line, 35) == doctest::Approx(0.775));
  CHECK(learning_rate_factor(cosine, 35) == doctest::Approx(0.1 + 0.9 * 0.8535533906));
}

TEST_CASE("schedules that cannot be computed are refused by the setting's name") {
  const auto refusal = [](const std::map<std::string, std::string>& values) {
    const Status status = with(values).check();
    return status ? std::string() : status.error().message;
  };
  CHECK(refusal({{"schedule", "step"}}).find("schedule_steps") != std::string::npos);
  CHECK(refusal({{"schedule", "cosine"}, {"schedule_steps", "5"}, {"warmup_steps", "5"}})
            .find("warmup_steps") != std::string::npos);
  CHECK(refusal({{"schedule_factor", "-1"}}).find("schedule_factor") != std::string::npos);
  CHECK(refusal({{"schedule_factor", "1.5"}}).find("schedule_factor") != std::string::npos);
}

}  // namespace
}  // namespace leeway
