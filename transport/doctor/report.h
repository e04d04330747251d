// What leeway-doctor prints: for people, and as JSON. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "transport/doctor/checks.h"

namespace leeway::doctor {

struct Report {
  std::string fabric;  // as asked for
  transport::Topology topology;
  NicOutcome nics;
  std::vector<Finding> findings;  // none for a recorded machine
};

std::string print_text(const Report& report);
// Strict JSON, one object.
std::string print_json(const Report& report);

}  // namespace leeway::doctor
