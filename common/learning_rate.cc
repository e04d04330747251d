#include "common/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace leeway {
namespace {

double scheduled(const JobSettings& settings, std::uint64_t clock) {
  const std::string& schedule = settings.schedule.value;
  const std::uint64_t end = settings.schedule_steps, begin = settings.warmup_steps;
  if (schedule == "step") {
    const std::uint64_t steps = clock / end;
    return std::pow(settings.schedule_factor, static_cast<double>(steps));
  }
  if (schedule == "constant" || clock <= begin) return 1;
  const double way =
      clock >= end ? 1 : static_cast<double>(clock - begin) / static_cast<double>(end - begin);
  const double left = schedule == "linear" ? 1 - way : (1 + std::cos(std::numbers::pi * way)) / 2;
  return settings.schedule_factor + (1 - settings.schedule_factor) * left;
}

}  // namespace

double learning_rate_factor(const JobSettings& settings, std::uint64_t clock) {
  const double warm = clock < settings.warmup_steps ? static_cast<double>(clock + 1) /
                                                          static_cast<double>(settings.warmup_steps)
                                                    : 1;
  return warm * scheduled(settings, clock);
}

}  // namespace leeway
