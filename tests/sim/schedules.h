// Running seeded schedules, for the simulator's program and its tests.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tests/sim/world.h"

namespace leeway::sim {

// What broke, or nothing.
inline std::optional<std::string> run_schedule(const WorldOptions& options,
                                               Happened* happened = nullptr) {
  try {
    World world(options);
    world.run();
    if (happened != nullptr) {
      const Happened& more = world.happened();
      happened->steps += more.steps;
      happened->late += more.late;
      happened->folded += more.folded;
      happened->checkpoints += more.checkpoints;
      happened->restarts += more.restarts;
      happened->deaths += more.deaths;
      happened->widened += more.widened;
      happened->norms += more.norms;
      happened->joins += more.joins;
      happened->grown += more.grown;
    }
    return std::nullopt;
  } catch (const SimulationError& error) {
    return error.what();
  }
}

}  // namespace leeway::sim
