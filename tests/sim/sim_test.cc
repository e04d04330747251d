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
std::optional<std::string> run_schedule(const WorldOptions& options,
                                        std::uint64_t* steps = nullptr) {
  try {
    World world(options);
    world.run();
    if (steps != nullptr) *steps += world.steps_applied();
    return std::nullopt;
  } catch (const SimulationError& error) {
    return error.what();
  }
}

// What the first of a few hundred schedules to break says; "" when none does.
std::string find_in_schedules(WorldOptions options) {
  for (options.seed = 1; options.seed <= 300; ++options.seed)
    if (const auto broken = run_schedule(options)) return *broken;
  return "";
}

}  // namespace

TEST_CASE("every seeded schedule keeps the protocol's promises") {
  const auto only = number_from("LEEWAY_SIM_SEED");
  const std::uint64_t first = only.value_or(1);
  const std::uint64_t count = only ? 1 : number_from("LEEWAY_SIM_SCHEDULES").value_or(2000);
  std::uint64_t steps = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const auto broken = run_schedule({.seed = seed}, &steps);
    REQUIRE_MESSAGE(!broken, "LEEWAY_SIM_SEED=" << seed << ": " << *broken);
  }
  CHECK(steps > 0);
  std::printf("%llu schedules, %llu steps applied\n", static_cast<unsigned long long>(count),
              static_cast<unsigned long long>(steps));
}

TEST_CASE("a gate that is off by one is found") {
  CHECK(find_in_schedules({.bugs = {.gate_slack = 1}}).find(" answered ") != std::string::npos);
}

TEST_CASE("a server that forgets what it has had is found") {
  CHECK(find_in_schedules({.bugs = {.no_dedupe = true}}) != "");
}

TEST_CASE("too few slabs lock servers into waiting for each other's workers, which is found") {
  CHECK(find_in_schedules({.one_slab = true}).starts_with("no progress"));
}

}  // namespace leeway::sim
