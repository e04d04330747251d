// The vector version of kernels/optimizer.h, over the vector type V. Included by simd.h alone.
//
// One pass over memory, in blocks that stay in the first-level cache: the gradients of a block are
// summed into a buffer there, one gradient after the other, then the block is updated, by each
// update in turn, and published. A single FP16 gradient needs no buffer.
#pragma once

#include "kernels/cpu_kernels.h"
#include "kernels/gradient_simd.h"
#include "kernels/simd_tail.h"

namespace leeway::kernels::simd {

constexpr std::size_t kUpdateBlock = 1024;  // 4 KiB of the 32 or 48 of a first-level cache

template <typename V, bool kStream>
void publish_vector(std::byte* publish, Dtype dtype, std::size_t i, typename V::F w) {
  if (dtype == Dtype::kF32) {
    auto* to = reinterpret_cast<float*>(publish) + i;
    kStream ? V::stream(to, w) : V::store(to, w);
    return;
  }
  std::byte* to = publish + i * 2;
  const auto packed = dtype == Dtype::kF16 ? V::to_half(w) : V::to_bfloat16(w);
  kStream ? V::stream_packed(to, packed) : V::store_packed(to, packed);
}

// step_element() of update_rules.h, on a vector of the arrays.
template <typename V, Optimizer kOptimizer>
class Step {
  using F = typename V::F;

 public:
  explicit Step(const UpdatePlan& plan) : coefficients_(broadcast<V>(plan.coefficients)) {}

  // Updates one vector at these addresses; returns the new weights.
  F operator()(F g, float* master, float* m_at, float* v_at) const {
    F m = V::set(0.0f), v = V::set(0.0f);
    if constexpr (state_arrays(kOptimizer) > 0) m = V::load(m_at);
    if constexpr (state_arrays(kOptimizer) > 1) v = V::load(v_at);
    const F w = step_element<kOptimizer, V>(coefficients_, g, V::load(master), m, v);
    if constexpr (state_arrays(kOptimizer) > 0) V::store(m_at, m);
    if constexpr (state_arrays(kOptimizer) > 1) V::store(v_at, v);
    V::store(master, w);
    return w;
  }

 private:
  const Coefficients<V> coefficients_;
};

// Fewer than a vector's elements, through padded copies.
template <typename V, Optimizer kOptimizer, bool kPublish>
void update_partial(const UpdatePlan& plan, const Step<V, kOptimizer>& step, const float* sums,
                    std::size_t at, std::size_t count) {
  constexpr int kStates = state_arrays(kOptimizer);
  Padded<V, float> w(plan.master + at, count);
  Padded<V, float> m;
  Padded<V, float> v;
  if constexpr (kStates > 0) std::memcpy(m.values, plan.m + at, count * sizeof(float));
  if constexpr (kStates > 1) std::memcpy(v.values, plan.v + at, count * sizeof(float));
  const auto updated = step(V::load(sums), w.values, m.values, v.values);
  w.copy_to(plan.master + at, count);
  if constexpr (kStates > 0) m.copy_to(plan.m + at, count);
  if constexpr (kStates > 1) v.copy_to(plan.v + at, count);
  if constexpr (!kPublish) return;
  Padded<V, float> published;  // room for either size
  publish_vector<V, false>(reinterpret_cast<std::byte*>(published.values), plan.publish_dtype, 0,
                           updated);
  const std::size_t bytes = plan.publish_dtype == Dtype::kF32 ? 4 : 2;
  std::memcpy(plan.publish + at * bytes, published.values, count * bytes);
}

// sums[0, count) (+)= the gradient, corrected for its delay.
template <typename V, bool kFirst>
void add_compensated(const UpdatePlan& plan, const Gradient& gradient, std::size_t at,
                     std::size_t count, float* sums) {
  alignas(64) float x[kUpdateBlock];
  alignas(64) float then[kUpdateBlock];
  add_gradient<V, true>(gradient, at, count, x);
  const Codec codec = plan.publish_dtype == Dtype::kF32   ? Codec::kF32
                      : plan.publish_dtype == Dtype::kF16 ? Codec::kF16
                                                          : Codec::kBf16;
  add_gradient<V, true>({.data = gradient.then, .codec = codec}, at, count, then);
  const auto lambda = V::set(plan.coefficients.delay_compensation);
  const auto add = [&](std::size_t i, const float* master) {
    const auto before = kFirst ? V::set(0.0f) : V::load(sums + i);
    V::store(sums + i,
             before + compensate<V>(lambda, V::load(x + i), V::load(master), V::load(then + i)));
  };
  std::size_t i = 0;
  for (; i + V::kWidth <= count; i += V::kWidth) add(i, plan.master + at + i);
  if (i < count) add(i, Padded<V, float>(plan.master + at + i, count - i).values);
}

template <typename V, bool kFirst>
void add_any(const UpdatePlan& plan, const Gradient& gradient, std::size_t at, std::size_t count,
             float* sums) {
  if (gradient.then != nullptr)
    add_compensated<V, kFirst>(plan, gradient, at, count, sums);
  else
    add_gradient<V, kFirst>(gradient, at, count, sums);
}

// run(gradient_at) updates the whole vectors of a block, gradient_at(i) being the sum for those
// from its element i on, and returns where it stopped; `sums` has those of the elements left then.
template <typename V, typename Run>
std::size_t sum_gradients(const UpdatePlan& plan, std::size_t at, std::size_t count, float* sums,
                          const Run& run) {
  const Gradient& first = plan.gradients[0];
  if (plan.gradient_count == 1 && first.codec == Codec::kF16 && first.then == nullptr) {
    const auto scale = V::set(first.inverse_scale);
    const std::size_t i = run([&](std::size_t k) {
      return V::set(0.0f) + load_gradient<V, Codec::kF16>(first.data + (at + k) * 2) * scale;
    });
    if (i < count) add_gradient<V, true>(first, at + i, count - i, sums + i);
    return i;
  }
  add_any<V, true>(plan, first, at, count, sums);
  for (std::size_t n = 1; n < plan.gradient_count; ++n)
    add_any<V, false>(plan, plan.gradients[n], at, count, sums);
  return run([&](std::size_t k) { return V::load(sums + k); });
}

template <typename V, Optimizer kOptimizer, bool kPublish, bool kStream>
void update_block(const UpdatePlan& plan, const Step<V, kOptimizer>& step, std::size_t at,
                  std::size_t count) {
  constexpr int kStates = state_arrays(kOptimizer);
  alignas(64) float sums[kUpdateBlock];
  const auto run = [&](auto gradient_at) {
    std::size_t i = 0;
    for (; i + V::kWidth <= count; i += V::kWidth) {
      const std::size_t k = at + i;
      const auto updated = step(gradient_at(i), plan.master + k, kStates > 0 ? plan.m + k : nullptr,
                                kStates > 1 ? plan.v + k : nullptr);
      if constexpr (kPublish)
        publish_vector<V, kStream>(plan.publish, plan.publish_dtype, k, updated);
    }
    return i;
  };
  const std::size_t i = sum_gradients<V>(plan, at, count, sums, run);
  if (i < count) update_partial<V, kOptimizer, kPublish>(plan, step, sums + i, at + i, count - i);
}

template <typename V, Optimizer kOptimizer>
void update_all(const UpdatePlan* plans, std::size_t updates) {
  const UpdatePlan& plan = plans[0];
  const std::size_t publish_bytes = plan.publish_dtype == Dtype::kF32 ? 4 : 2;
  const bool streams = plan.publish != nullptr && plan.elements * publish_bytes >= kStreamBytes;
  const auto silent = update_block<V, kOptimizer, false, false>;
  const auto last = plan.publish == nullptr ? silent
                    : streams               ? update_block<V, kOptimizer, true, true>
                                            : update_block<V, kOptimizer, true, false>;
  const auto block = [&](std::size_t from, std::size_t count) {
    for (std::size_t n = 0; n < updates; ++n)
      (n + 1 < updates ? silent : last)(plans[n], Step<V, kOptimizer>(plans[n]), from, count);
  };
  std::size_t at = 0;
  if (streams) {
    const std::size_t head = elements_to_alignment<V>(plan.publish, publish_bytes, plan.elements);
    if (head > 0) block(0, head);
    at = head;
  }
  while (at < plan.elements) {
    const std::size_t left = plan.elements - at;
    const std::size_t count = left < kUpdateBlock ? left : kUpdateBlock;
    block(at, count);
    at += count;
  }
  if (streams) V::fence();
}

template <typename V>
void update(const UpdatePlan* plans, std::size_t count) {
  with_optimizer(plans[0].optimizer,
                 [&](auto optimizer) { update_all<V, optimizer.value>(plans, count); });
}

}  // namespace leeway::kernels::simd
