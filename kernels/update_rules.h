// The formula of each optimizer for one element, or a vector of them: written once for the scalar
// reference, the SIMD versions and the CUDA kernel. kernels/optimizer.h is the contract.
//
// V is what an element is made of: V::F with + - * /, and V::sqrt. Everything here is a template
// over V, so that the instances of a vector type stay inside its translation unit (simd.h).
#pragma once

#include <cmath>
#include <type_traits>

#include "common/optimizer.h"
#include "kernels/host_device.h"

namespace leeway::kernels {

// One element at a time.
struct Scalar {
  using F = float;
  LEEWAY_HOST_DEVICE static F set(float x) { return x; }
  LEEWAY_HOST_DEVICE static F sqrt(F x) { return sqrtf(x); }
};

// What of an update is the same for all elements.
template <typename V>
struct Coefficients {
  using F = typename V::F;
  bool decays = false;   // weight_decay is not zero
  bool gathers = false;  // delayed_nesterov: not the update in which the momentum takes part
  F weight, weight_decay;
  F learning_rate, momentum, share;  // share = 1 / momentum_period
  F beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon, step_size, root_correction;
  F delay_compensation;
};

template <typename V>
Coefficients<V> broadcast(const Coefficients<Scalar>& c) {
  return {.decays = c.decays,
          .gathers = c.gathers,
          .weight = V::set(c.weight),
          .weight_decay = V::set(c.weight_decay),
          .learning_rate = V::set(c.learning_rate),
          .momentum = V::set(c.momentum),
          .share = V::set(c.share),
          .beta1 = V::set(c.beta1),
          .one_minus_beta1 = V::set(c.one_minus_beta1),
          .beta2 = V::set(c.beta2),
          .one_minus_beta2 = V::set(c.one_minus_beta2),
          .epsilon = V::set(c.epsilon),
          .step_size = V::set(c.step_size),
          .root_correction = V::set(c.root_correction),
          .delay_compensation = V::set(c.delay_compensation)};
}

// One worker's gradient, corrected for what the weights went since it was computed.
template <typename V, typename F = typename V::F>
LEEWAY_HOST_DEVICE inline F compensate(F lambda, F g, F w, F then) {
  return g + ((lambda * g) * g) * (w - then);
}

// The new weight from the gradient g and the old weight w; state is updated in place.
template <Optimizer kOptimizer>
struct Rule;

template <>
struct Rule<Optimizer::kSgd> {
  template <typename V, typename F = typename V::F>
  LEEWAY_HOST_DEVICE static F step(const Coefficients<V>& c, F g, F w, F&, F&) {
    return w - c.learning_rate * g;
  }
};

template <>
struct Rule<Optimizer::kMomentum> {
  template <typename V, typename F = typename V::F>
  LEEWAY_HOST_DEVICE static F step(const Coefficients<V>& c, F g, F w, F& m, F&) {
    m = c.momentum * m + g;
    return w - c.learning_rate * m;
  }
};

template <>
struct Rule<Optimizer::kNesterov> {
  template <typename V, typename F = typename V::F>
  LEEWAY_HOST_DEVICE static F step(const Coefficients<V>& c, F g, F w, F& m, F&) {
    m = c.momentum * m + g;
    return w - c.learning_rate * (g + c.momentum * m);
  }
};

template <>
struct Rule<Optimizer::kDelayedNesterov> {
  template <typename V, typename F = typename V::F>
  LEEWAY_HOST_DEVICE static F step(const Coefficients<V>& c, F g, F w, F& m, F& v) {
    v = v + g;
    if (c.gathers) return w - c.learning_rate * (g * c.share);
    m = c.momentum * m + v * c.share;
    v = V::set(0.0f);
    return w - c.learning_rate * (c.momentum * m + g * c.share);
  }
};

template <>
struct Rule<Optimizer::kAdagrad> {
  template <typename V, typename F = typename V::F>
  LEEWAY_HOST_DEVICE static F step(const Coefficients<V>& c, F g, F w, F& m, F&) {
    m = m + g * g;
    return w - (c.learning_rate * g) / (V::sqrt(m) + c.epsilon);
  }
};

template <>
struct Rule<Optimizer::kAdam> {
  template <typename V, typename F = typename V::F>
  LEEWAY_HOST_DEVICE static void take(const Coefficients<V>& c, F g, F& m, F& v) {
    m = c.beta1 * m + c.one_minus_beta1 * g;
    v = c.beta2 * v + (c.one_minus_beta2 * g) * g;
  }
  template <typename V, typename F = typename V::F>
  LEEWAY_HOST_DEVICE static F quotient(const Coefficients<V>& c, F m, F v) {
    return (c.step_size * m) / (V::sqrt(v) * c.root_correction + c.epsilon);
  }
  template <typename V, typename F = typename V::F>
  LEEWAY_HOST_DEVICE static F change(const Coefficients<V>& c, F g, F& m, F& v) {
    take<V>(c, g, m, v);
    return quotient<V>(c, m, v);
  }
  template <typename V, typename F = typename V::F>
  LEEWAY_HOST_DEVICE static F step(const Coefficients<V>& c, F g, F w, F& m, F& v) {
    return w - change<V>(c, g, m, v);
  }
};

// weight_decay has the learning rate in it here (plan_update).
template <>
struct Rule<Optimizer::kAdamW> {
  template <typename V, typename F = typename V::F>
  LEEWAY_HOST_DEVICE static F step(const Coefficients<V>& c, F g, F w, F& m, F& v) {
    F change = Rule<Optimizer::kAdam>::change<V>(c, g, m, v);
    if (c.decays) change = change + c.weight_decay * w;
    return w - change;
  }
};

// step_size has no learning rate in it here, and learning_rate has the trust ratio (plan_update).
template <>
struct Rule<Optimizer::kLamb> {
  template <typename V, typename F = typename V::F>
  LEEWAY_HOST_DEVICE static F change(const Coefficients<V>& c, F w, F m, F v) {
    const F change = Rule<Optimizer::kAdam>::quotient<V>(c, m, v);
    return c.decays ? change + c.weight_decay * w : change;
  }
  template <typename V, typename F = typename V::F>
  LEEWAY_HOST_DEVICE static F step(const Coefficients<V>& c, F g, F w, F& m, F& v) {
    Rule<Optimizer::kAdam>::take<V>(c, g, m, v);
    return w - c.learning_rate * change<V>(c, w, m, v);
  }
};

// From the sum of the gradients, before `weight`.
template <Optimizer kOptimizer, typename V, typename F = typename V::F>
LEEWAY_HOST_DEVICE inline F step_element(const Coefficients<V>& c, F g, F w, F& m, F& v) {
  constexpr bool kDecoupled = kOptimizer == Optimizer::kAdamW || kOptimizer == Optimizer::kLamb;
  g = g * c.weight;
  if (!kDecoupled && c.decays) g = g + c.weight_decay * w;
  return Rule<kOptimizer>::template step<V>(c, g, w, m, v);
}

// use(std::integral_constant<Optimizer, ...>) for the optimizer that a run has.
template <typename Use>
decltype(auto) with_optimizer(Optimizer optimizer, const Use& use) {
  switch (optimizer) {
    case Optimizer::kMomentum:
      return use(std::integral_constant<Optimizer, Optimizer::kMomentum>());
    case Optimizer::kNesterov:
      return use(std::integral_constant<Optimizer, Optimizer::kNesterov>());
    case Optimizer::kDelayedNesterov:
      return use(std::integral_constant<Optimizer, Optimizer::kDelayedNesterov>());
    case Optimizer::kAdagrad:
      return use(std::integral_constant<Optimizer, Optimizer::kAdagrad>());
    case Optimizer::kAdam:
      return use(std::integral_constant<Optimizer, Optimizer::kAdam>());
    case Optimizer::kAdamW:
      return use(std::integral_constant<Optimizer, Optimizer::kAdamW>());
    case Optimizer::kLamb:
      return use(std::integral_constant<Optimizer, Optimizer::kLamb>());
    case Optimizer::kSgd:
      break;
  }
  return use(std::integral_constant<Optimizer, Optimizer::kSgd>());
}

}  // namespace leeway::kernels
