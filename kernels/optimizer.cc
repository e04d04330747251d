#include "kernels/optimizer.h"

#include <cmath>
#include <vector>

#include "common/result.h"
#include "kernels/cpu_kernels.h"
#include "kernels/scalar.h"

namespace leeway::kernels {
namespace {

void publish_element(const UpdatePlan& plan, std::size_t i, float w) {
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

template <Optimizer kOptimizer>
void update_all(const UpdatePlan& plan, bool publish) {
  float unused = 0.0f;
  for (std::size_t i = 0; i < plan.elements; ++i) {
    float g = 0.0f;
    for (std::size_t n = 0; n < plan.gradient_count; ++n)
      g = g + load_element(plan.gradients[n], i) * plan.gradients[n].inverse_scale;
    float& m = state_arrays(kOptimizer) > 0 ? plan.m[i] : unused;
    float& v = state_arrays(kOptimizer) > 1 ? plan.v[i] : unused;
    const float w = step_element<kOptimizer>(plan, g, plan.master[i], m, v);
    plan.master[i] = w;
    if (publish && plan.publish != nullptr) publish_element(plan, i, w);
  }
}

}  // namespace

void scalar::update(const UpdatePlan* plans, std::size_t count) {
  for (std::size_t n = 0; n < count; ++n) {
    const bool last = n + 1 == count;
    switch (plans[n].optimizer) {
      case Optimizer::kSgd:
        update_all<Optimizer::kSgd>(plans[n], last);
        break;
      case Optimizer::kMomentum:
        update_all<Optimizer::kMomentum>(plans[n], last);
        break;
      case Optimizer::kAdam:
        update_all<Optimizer::kAdam>(plans[n], last);
        break;
    }
  }
}

UpdatePlan plan_update(Optimizer optimizer, const Hyper& hyper, const UpdateArgs& args) {
  LEEWAY_CHECK(!args.gradients.empty());
  UpdatePlan plan;
  plan.optimizer = optimizer;
  plan.publish_dtype = args.publish_dtype;
  plan.weight = args.weight;
  plan.learning_rate = hyper.learning_rate;
  plan.momentum = hyper.momentum;
  plan.beta1 = hyper.beta1;
  plan.one_minus_beta1 = 1.0f - hyper.beta1;
  plan.beta2 = hyper.beta2;
  plan.one_minus_beta2 = 1.0f - hyper.beta2;
  plan.epsilon = hyper.epsilon;
  plan.weight_decay = hyper.weight_decay;
  if (optimizer == Optimizer::kAdam) {
    const auto step = static_cast<double>(args.step);
    plan.step_size = static_cast<float>(hyper.learning_rate /
                                        (1.0 - std::pow(static_cast<double>(hyper.beta1), step)));
    plan.root_correction =
        static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(static_cast<double>(hyper.beta2), step)));
  }
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
