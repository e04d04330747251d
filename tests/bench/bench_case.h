// One line of leeway-bench: a figure beside the limit that was measured in the same run. Plain
// data.
#pragma once

#include <string>

namespace leeway::bench {

struct Case {
  std::string name;
  double value = 0;  // median of the rounds
  double limit = 0;  // median of the limit's rounds, in the same unit
  double ratio =
      0;           // median of each round's value over its own limit: drift of the machine cancels
  double min = 0;  // of value
  double max = 0;
  std::string unit;
};

}  // namespace leeway::bench
