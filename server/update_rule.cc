#include "server/update_rule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "common/learning_rate.h"

namespace leeway::server {

UpdateRule::UpdateRule(const JobSettings& settings, Clock clock)
    : settings_(settings),
      optimizer_(settings.optimizer_type()),
      hyper_{.learning_rate = static_cast<float>(settings.learning_rate),
             .momentum = static_cast<float>(settings.momentum),
             .beta1 = static_cast<float>(settings.beta1),
             .beta2 = static_cast<float>(settings.beta2),
             .epsilon = static_cast<float>(settings.epsilon),
             .weight_decay = static_cast<float>(settings.weight_decay),
             .momentum_period = settings.momentum_period,
             .delay_compensation = static_cast<float>(settings.delay_compensation)},
      clock_(clock) {}

void UpdateRule::change(const JobSettings& settings) {
  settings_.learning_rate = settings.learning_rate;
  settings_.schedule = settings.schedule;
  settings_.schedule_steps = settings.schedule_steps;
  settings_.schedule_factor = settings.schedule_factor;
  settings_.warmup_steps = settings.warmup_steps;
  hyper_.learning_rate = static_cast<float>(settings.learning_rate);
}

double UpdateRule::rate_of(const Contribution& contribution) const {
  return settings_.staleness_rate.value == "inverse"
             ? 1 / (1 + static_cast<double>(contribution.staleness))
             : 1;
}

double UpdateRule::decay_of(const Contribution& contribution) const {
  const auto staleness = static_cast<double>(contribution.staleness);
  const double cutoff = settings_.staleness_cutoff;
  double gate = 1;
  if (cutoff > 0)
    gate = staleness < cutoff ? (1 + std::cos(std::numbers::pi * staleness / cutoff)) / 2 : 0;
  return gate * std::exp(-settings_.staleness_decay * staleness);
}

void UpdateRule::weigh(Sum& sum) {
  double mean = sum.contributions.empty() ? 1 : 0;
  for (const Contribution& contribution : sum.contributions) {
    clock_ = std::max(clock_, contribution.step.clock);
    mean += rate_of(contribution) / static_cast<double>(sum.contributions.size());
  }
  for (Contribution& contribution : sum.contributions)
    contribution.factor = static_cast<float>(
        contribution.factor * (rate_of(contribution) / mean * decay_of(contribution)));
  sum.late = static_cast<float>(sum.late / mean);
  sum.rate = static_cast<float>(mean * learning_rate_factor(settings_, clock_.value()));
}

void UpdateRule::weigh(FoldLate& late) {
  for (Contribution& contribution : late.contributions) {
    clock_ = std::max(clock_, contribution.step.clock);
    contribution.factor =
        static_cast<float>(contribution.factor * (rate_of(contribution) * decay_of(contribution)));
  }
}

}  // namespace leeway::server
