#include "tests/bench/summary.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/result.h"

namespace leeway::bench {
namespace {

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

nlohmann::ordered_json machine() {
  utsname system{};
  uname(&system);
  const auto memory = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                      static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return {{"processor", processor()},
          {"cores", sysconf(_SC_NPROCESSORS_ONLN)},
          {"memory_bytes", memory},
          {"kernel", system.release}};
}

}  // namespace

void Rounds::add(double value, double limit) {
  values_.push_back(value);
  limits_.push_back(limit);
  ratios_.push_back(value / limit);
}

Case Rounds::summary(std::string name, std::string unit) const {
  return {.name = std::move(name),
          .value = median(values_),
          .limit = median(limits_),
          .ratio = median(ratios_),
          .min = *std::ranges::min_element(values_),
          .max = *std::ranges::max_element(values_),
          .unit = std::move(unit)};
}

double median(std::vector<double> values) {
  LEEWAY_CHECK(!values.empty());
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 != 0 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::string as_json(const std::string& bench, const std::vector<Case>& cases) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Case& c : cases)
    list.push_back({{"name", c.name},
                    {"value", c.value},
                    {"limit", c.limit},
                    {"ratio", c.ratio},
                    {"min", c.min},
                    {"max", c.max},
                    {"unit", c.unit}});
  const nlohmann::ordered_json document = {
      {"bench", bench}, {"machine", machine()}, {"cases", list}};
  return document.dump(2) + "\n";
}

std::string as_table(const std::vector<Case>& cases) {
  std::size_t width = 4;
  for (const Case& c : cases) width = std::max(width, c.name.size());
  std::string text = fmt::format("{:<{}} {:>9} {:>9} {:>6} {:>9} {:>9}\n", "case", width, "value",
                                 "limit", "ratio", "min", "max");
  for (const Case& c : cases)
    text += fmt::format("{:<{}} {:>9.2f} {:>9.2f} {:>6.2f} {:>9.2f} {:>9.2f}  {}\n", c.name, width,
                        c.value, c.limit, c.ratio, c.min, c.max, c.unit);
  return text;
}

}  // namespace leeway::bench
