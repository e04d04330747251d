// What leeway-doctor prints: for people, and as JSON. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "transport/doctor/checks.h"
#include "transport/numa_choice.h"

namespace leeway::doctor {

struct Report {
  std::string fabric;  // as asked for
  transport::Topology topology;
  NicOutcome nics;
  std::vector<Finding> findings;  // none for a recorded machine
  bool confined = false;          // this process may run on some CPUs only
};

// Where a server that uses these NICs keeps its memory and computes.
transport::NumaPlan servers_numa(const Report& report);

std::string print_text(const Report& report);
// Strict JSON, one object.
std::string print_json(const Report& report);

}  // namespace leeway::doctor
