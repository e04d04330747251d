// Random schedules of a whole job through the server's consistency core (see world.h).
//
//   sim_test                   the schedules of every run
//   LEEWAY_SIM_SEED=N sim_test  one schedule again
//   LEEWAY_SIM_SCHEDULES=N      another number of them
#include <doctest/doctest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "tests/sim/world.h"

namespace leeway::sim {
namespace {

std::optional<std::uint64_t> number_from(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::optional(std::strtoull(text, nullptr, 10)) : std::nullopt;
}

// What broke, or nothing.
std::optional<std::string> run_schedule(std::uint64_t seed, server::CoreConfig::PlantedBugs bugs,
                                        std::uint64_t* steps = nullptr) {
  try {
    World world({.seed = seed, .bugs = bugs});
    world.run();
    if (steps != nullptr) *steps += world.steps_applied();
    return std::nullopt;
  } catch (const SimulationError& error) {
    return error.what();
  }
}

std::uint64_t schedules_to_find(server::CoreConfig::PlantedBugs bugs) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed)
    if (run_schedule(seed, bugs)) return seed;
  return 0;
}

}  // namespace

TEST_CASE("every seeded schedule keeps the protocol's promises") {
  const auto only = number_from("LEEWAY_SIM_SEED");
  const std::uint64_t first = only.value_or(1);
  const std::uint64_t count = only ? 1 : number_from("LEEWAY_SIM_SCHEDULES").value_or(2000);
  std::uint64_t steps = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const auto broken = run_schedule(seed, {}, &steps);
    REQUIRE_MESSAGE(!broken, "LEEWAY_SIM_SEED=" << seed << ": " << *broken);
  }
  CHECK(steps > 0);
  std::printf("%llu schedules, %llu steps applied\n", static_cast<unsigned long long>(count),
              static_cast<unsigned long long>(steps));
}

TEST_CASE("a gate that is off by one is found") {
  CHECK(schedules_to_find({.gate_slack = 1}) != 0);
}

TEST_CASE("a server that forgets what it has had is found") {
  CHECK(schedules_to_find({.no_dedupe = true}) != 0);
}

}  // namespace leeway::sim
