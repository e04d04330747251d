// The simulator notices what is broken on purpose (see world.h; main.cc runs the schedules).
#include <doctest/doctest.h>

#include <string>

#include "tests/sim/schedules.h"

namespace leeway::sim {
namespace {

// What the first of many schedules to break says; "" when none does.
std::string find_in_schedules(WorldOptions options) {
  for (options.seed = 1; options.seed <= 20000; ++options.seed)
    if (const auto broken = run_schedule(options)) return *broken;
  return "";
}

}  // namespace

TEST_CASE("a few schedules keep the protocol's promises") {
  Happened happened;
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    const auto broken = run_schedule({.seed = seed}, &happened);
    REQUIRE_MESSAGE(!broken, "--seed " << seed << ": " << *broken);
  }
  CHECK(happened.late > 0);
  CHECK(happened.folded > 0);
  CHECK(happened.restarts > 0);
  CHECK(happened.widened > 0);
  CHECK(happened.norms > 0);
  CHECK(happened.joins > happened.grown);
  CHECK(happened.grown > 0);
}

TEST_CASE("a gate that is off by one is found") {
  CHECK(find_in_schedules({.bugs = {.gate_slack = 1}}).find("bound") != std::string::npos);
}

TEST_CASE("a server that forgets what it has had is found") {
  CHECK(find_in_schedules({.bugs = {.no_dedupe = true}}) != "");
}

TEST_CASE("a late step that is lost is found") {
  CHECK(find_in_schedules({.bugs = {.late_lost = true}}) != "");
}

TEST_CASE("a late step that is counted twice is found") {
  CHECK(find_in_schedules({.bugs = {.late_twice = true}}) != "");
}

TEST_CASE("norms that are taken for those of another clock are found") {
  CHECK(find_in_schedules({.bugs = {.norms_of_any_clock = true}}) != "");
}

TEST_CASE("servers that wait for each other's norms and for a checkpoint are found") {
  CHECK(find_in_schedules({.bugs = {.held_back_by_norms = true}}).find("waited") !=
        std::string::npos);
}

TEST_CASE("a joiner that counts from one clock too early is found") {
  CHECK(find_in_schedules({.bugs = {.join_early = true}}) != "");
}

TEST_CASE("too few slabs lock servers into waiting for each other's workers, which is found") {
  CHECK(find_in_schedules({.one_slab = true}).starts_with("no progress"));
}

}  // namespace leeway::sim
