#include "tests/bench/pushpull_plan.h"

#include "kernels/optimizer.h"
#include "server/update_rule.h"

namespace leeway::bench {

JobSettings settings_of(const PushPullPlan& plan) {
  JobSettings settings;
  settings.staleness.value = Bound::kInfinite;
  settings.optimizer.value = plan.optimizer;
  settings.learning_rate = kLearningRate;
  settings.server_memory_limit.value = plan.memory_limit;
  return settings;
}

std::array<float, 7> weights_after(const PushPullPlan& plan, std::uint64_t steps) {
  const server::UpdateRule rule(settings_of(plan), Clock(0));
  std::array<float, 7> gradient{}, w{}, m{}, v{};
  for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = gradient_of(plan, i);
  const kernels::Gradient payload{.data = reinterpret_cast<const std::byte*>(gradient.data()),
                                  .codec = Codec::kF32};
  for (std::uint64_t step = 1; step <= steps; ++step) {
    const kernels::UpdateArgs update{.gradients = {&payload, 1},
                                     .elements = w.size(),
                                     .master = w.data(),
                                     .state = {m.data(), v.data()},
                                     .step = step};
    kernels::update(rule.optimizer(), rule.hyper(), {&update, 1});
  }
  for (float& weight : w) weight = to_float(to_half(weight));
  return w;
}

}  // namespace leeway::bench
