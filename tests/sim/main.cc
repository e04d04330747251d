// Random schedules of a whole job through the server's consistency core (see world.h).
//
//   simulate                20,000 schedules
//   simulate --schedules N  another number of them
//   simulate --seed N       one schedule again
//
// Prints how many, and how long they took; the first that breaks a promise ends it with its seed.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>

#include "tests/sim/schedules.h"

int main(int argc, char** argv) {
  std::uint64_t schedules = 20000, seed = 0;
  CLI::App app("Random schedules of a job; every promise of the protocol is checked.");
  app.add_option("--schedules", schedules, "how many");
  const CLI::Option* one = app.add_option("--seed", seed, "only this one");
  CLI11_PARSE(app, argc, argv);
  const std::uint64_t first = one->count() > 0 ? seed : 1;
  const std::uint64_t last = one->count() > 0 ? seed : schedules;
  const auto from = std::chrono::steady_clock::now();
  leeway::sim::Happened happened;
  for (std::uint64_t n = first; n <= last; ++n)
    if (const auto broken = leeway::sim::run_schedule({.seed = n}, &happened)) {
      std::fprintf(stderr, "schedule --seed %llu: %s\n", static_cast<unsigned long long>(n),
                   broken->c_str());
      return 1;
    }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - from;
  const auto number = [](std::uint64_t n) { return static_cast<unsigned long long>(n); };
  std::printf(
      "%llu schedules in %.1f s, no promise broken: %llu steps applied (%llu late, %llu of them "
      "folded), %llu checkpoints, %llu restarts, %llu dead workers, %llu joined "
      "(%llu as more), %llu adapted bounds, %llu norms of tensors on several servers\n",
      number(last - first + 1), took.count(), number(happened.steps), number(happened.late),
      number(happened.folded), number(happened.checkpoints), number(happened.restarts),
      number(happened.deaths), number(happened.joins), number(happened.grown),
      number(happened.widened), number(happened.norms));
  return 0;
}
