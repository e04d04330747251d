#include "kernels/optimizer.h"

#include <cmath>
#include <vector>

#include "common/result.h"
#include "kernels/cpu_kernels.h"
#include "kernels/scalar.h"

namespace leeway::kernels {

void scalar::publish_element(const UpdatePlan& plan, std::size_t i, float w) {
  switch (plan.publish_dtype) {
    case Dtype::kF32:
      reinterpret_cast<float*>(plan.publish)[i] = w;
      return;
    case Dtype::kF16:
      reinterpret_cast<Half*>(plan.publish)[i] = to_half(w);
      return;
    case Dtype::kBf16:
      reinterpret_cast<Bfloat16*>(plan.publish)[i] = to_bfloat16(w);
      return;
  }
}

float scalar::sum_gradients(const UpdatePlan& plan, std::size_t i) {
  float g = 0.0f;
  for (std::size_t n = 0; n < plan.gradient_count; ++n) {
    const Gradient& gradient = plan.gradients[n];
    const float x = load_element(gradient, i) * gradient.inverse_scale;
    if (gradient.then == nullptr) {
      g = g + x;
      continue;
    }
    const Gradient then{.data = gradient.then, .codec = codec_of(plan.publish_dtype)};
    g = g + compensate<Scalar>(plan.coefficients.delay_compensation, 0.0f + x, plan.master[i],
                               0.0f + load_element(then, i));
  }
  return g;
}

namespace {

template <Optimizer kOptimizer>
void update_all(const UpdatePlan& plan, bool publish) {
  float unused = 0.0f;
  for (std::size_t i = 0; i < plan.elements; ++i) {
    const float g = scalar::sum_gradients(plan, i);
    float& m = state_arrays(kOptimizer) > 0 ? plan.m[i] : unused;
    float& v = state_arrays(kOptimizer) > 1 ? plan.v[i] : unused;
    const float w = step_element<kOptimizer, Scalar>(plan.coefficients, g, plan.master[i], m, v);
    plan.master[i] = w;
    if (publish && plan.publish != nullptr) scalar::publish_element(plan, i, w);
  }
}

}  // namespace

void scalar::update(const UpdatePlan* plans, std::size_t count) {
  for (std::size_t n = 0; n < count; ++n)
    with_optimizer(plans[n].optimizer,
                   [&](auto optimizer) { update_all<optimizer.value>(plans[n], n + 1 == count); });
}

UpdatePlan plan_update(Optimizer optimizer, const Hyper& hyper, const UpdateArgs& args) {
  LEEWAY_CHECK(!args.gradients.empty());
  const double rate = static_cast<double>(hyper.learning_rate) * args.rate;
  const auto correction = [&](float beta) {
    return 1.0 - std::pow(static_cast<double>(beta), static_cast<double>(args.step));
  };
  UpdatePlan plan;
  plan.optimizer = optimizer;
  plan.publish_dtype = args.publish_dtype;
  plan.coefficients = {
      .decays = args.decays && hyper.weight_decay != 0.0f,
      .gathers = args.step % hyper.momentum_period != 0,
      .weight = args.weight,
      .weight_decay = optimizer == Optimizer::kAdamW ? static_cast<float>(rate * hyper.weight_decay)
                                                     : hyper.weight_decay,
      .learning_rate = static_cast<float>(rate),
      .momentum = hyper.momentum,
      .share = static_cast<float>(1.0 / hyper.momentum_period),
      .beta1 = hyper.beta1,
      .one_minus_beta1 = 1.0f - hyper.beta1,
      .beta2 = hyper.beta2,
      .one_minus_beta2 = 1.0f - hyper.beta2,
      .epsilon = hyper.epsilon,
      .step_size = static_cast<float>((optimizer == Optimizer::kLamb ? 1.0 : rate) /
                                      correction(hyper.beta1)),
      .root_correction = static_cast<float>(1.0 / std::sqrt(correction(hyper.beta2))),
      .delay_compensation = hyper.delay_compensation};
  plan.gradients = args.gradients.data();
  plan.gradient_count = args.gradients.size();
  plan.elements = args.elements;
  plan.master = args.master;
  plan.m = args.state[0];
  plan.v = args.state[1];
  plan.publish = args.publish;
  return plan;
}

void update(Optimizer optimizer, const Hyper& hyper, std::span<const UpdateArgs> updates) {
  std::vector<UpdatePlan> plans;
  plans.reserve(updates.size());
  for (const UpdateArgs& args : updates) plans.push_back(plan_update(optimizer, hyper, args));
  cpu_kernels().update(plans.data(), plans.size());
}

}  // namespace leeway::kernels
