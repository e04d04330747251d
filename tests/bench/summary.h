// Rounds of a measurement and of its limit, and how leeway-bench prints their summary. One thread.
#pragma once

#include <string>
#include <vector>

#include "tests/bench/bench_case.h"

namespace leeway::bench {

class Rounds {
 public:
  void add(double value, double limit);
  // Medians; the ratio is the median of each round's own, so a drift of the machine cancels.
  Case summary(std::string name, std::string unit) const;

 private:
  std::vector<double> values_, limits_, ratios_;
};

double median(std::vector<double> values);  // of at least one

std::string as_json(const std::string& bench, const std::vector<Case>& cases);
std::string as_table(const std::vector<Case>& cases);

}  // namespace leeway::bench
