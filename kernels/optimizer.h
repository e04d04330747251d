// The servers' fused update: gradients in, FP32 master and state, published copy out, one pass over
// memory.
//
// Same bits everywhere: with fp32 arithmetic, round to nearest, and exactly the operations below in
// exactly this order (no fused multiply-add), every version (scalar reference, AVX2, AVX-512, CUDA)
// gives the same bits for the same input.
//
//   g = 0;  for each gradient i in order:  g = g + data_i * inverse_scale_i
//           with delay compensation, when the weights `then` of the gradient are known:
//             x = 0 + data_i * inverse_scale_i
//             g = g + (x + ((delay_compensation * x) * x) * (w - (0 + then_i)))
//           Zheng et al. 2017 (ICML), eq. 10: x * x stands for the diagonal of the Hessian
//   g = g * weight
//   g = g + weight_decay * w                  (all but adamw and lamb; only when weight_decay != 0)
//
//   sgd        w = w - learning_rate * g
//   momentum   m = momentum * m + g;  w = w - learning_rate * m
//              heavy ball without dampening: Sutskever et al. 2013, eq. 1-2, with the learning rate
//              taken out of the velocity
//   nesterov   m = momentum * m + g;  w = w - learning_rate * (g + momentum * m)
//              Sutskever et al. 2013, eq. 3-4, written for the weights at the look-ahead point.
//              With a worker's weight change (weights before - weights after its local steps) for
//              the gradient it is the outer optimizer of DiLoCo (Douillard et al. 2023, algorithm
//              1).
//   delayed_nesterov   m takes part in every N-th update (N = momentum_period) alone:
//              v = v + g
//              update N, 2N, ...:  m = momentum * m + v * (1/N);  v = 0
//                                  w = w - learning_rate * (momentum * m + g * (1/N))
//              else:               w = w - learning_rate * (g * (1/N))
//              Liu et al. 2024 (arXiv 2401.09135), Delayed Nesterov with c = 0: N updates together
//              are one of nesterov with the mean of their gradients
//   adagrad    m = m + g * g;  w = w - (learning_rate * g) / (sqrt(m) + epsilon)
//              Duchi et al. 2011, the diagonal version
//   adam       m = beta1 * m + (1 - beta1) * g
//              v = beta2 * v + ((1 - beta2) * g) * g
//              w = w - (step_size * m) / (sqrt(v) * root_correction + epsilon)
//              step_size = learning_rate / (1 - beta1^step), root_correction = 1 / sqrt(1 -
//              beta2^step), both computed in FP64 once per call, then rounded (Kingma and Ba 2015,
//              algorithm 1)
//   adamw      as adam, but w = w - (... + (learning_rate * weight_decay) * w)
//              decoupled decay: Loshchilov and Hutter 2019, algorithm 2; the decay follows the
//              learning rate, as their schedule multiplier does
//   lamb       as adamw in one pass, with a trust ratio of 1: what tensors without weight decay
//              get. The others' two passes and the formula are in kernels/lamb.h.
//   publish = round to nearest even (w)
//
// Called from any thread, on disjoint ranges at once. Pointers may be unaligned by the element size
// only. Arrays of one update should not lie at the same offset modulo 4 KiB (docs/performance.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/optimizer.h"
#include "common/tensor.h"
#include "kernels/gradient.h"

namespace leeway::kernels {

using leeway::Optimizer;
using leeway::state_arrays;

struct Hyper {
  float learning_rate = 0.01f;
  float momentum = 0.9f;
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float epsilon = 1e-8f;
  float weight_decay = 0.0f;
  std::uint32_t momentum_period = 4;  // N of delayed_nesterov, at least 1
  float delay_compensation = 0.0f;    // lambda
};

struct UpdateArgs {
  std::span<const Gradient> gradients;  // at least one
  float weight = 1.0f;                  // 1/n to average n of them
  float rate = 1.0f;                    // the learning rate is multiplied by it
  bool decays = true;                   // weight_decay applies
  std::size_t elements = 0;
  float* master = nullptr;
  float* state[2] = {nullptr, nullptr};  // m, v
  std::byte* publish = nullptr;          // null = do not publish
  Dtype publish_dtype = Dtype::kF16;
  std::uint64_t step = 1;  // updates that this partition has had, this one included
};

// These updates one after the other, with the bits of as many passes, in one pass over memory. All
// are of the same arrays; what the last one leaves is published.
void update(Optimizer optimizer, const Hyper& hyper, std::span<const UpdateArgs> updates);

}  // namespace leeway::kernels
