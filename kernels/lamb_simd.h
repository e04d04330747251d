// The vector version of kernels/lamb.h. Included by simd.h alone.
#pragma once

#include "kernels/cpu_kernels.h"
#include "kernels/optimizer_simd.h"
#include "kernels/simd_tail.h"
#include "kernels/sum_of_squares.h"

namespace leeway::kernels::simd {

static_assert(kNormBlock == kUpdateBlock);

template <typename V>
class LambMoments {
  using F = typename V::F;

 public:
  explicit LambMoments(const UpdatePlan& plan) : plan_(plan), c_(broadcast<V>(plan.coefficients)) {}

  // Elements [at, at + count), at most a block.
  void operator()(std::size_t at, std::size_t count, double* weights, double* changes) const {
    alignas(64) float sums[kUpdateBlock];
    auto of_weights = V::no_squares();
    auto of_changes = V::no_squares();
    const std::size_t i = sum_gradients<V>(plan_, at, count, sums, [&](auto gradient_at) {
      std::size_t k = 0;
      for (; k + V::kWidth <= count; k += V::kWidth) {
        const F w = V::load(plan_.master + at + k);
        V::add_squares(of_changes, change(gradient_at(k), w, plan_.m + at + k, plan_.v + at + k));
        V::add_squares(of_weights, w);
      }
      return k;
    });
    if (i < count) {  // through padded copies, whose zeros change no sum
      const std::size_t left = count - i;
      const Padded<V, float> w(plan_.master + at + i, left);
      Padded<V, float> m(plan_.m + at + i, left);
      Padded<V, float> v(plan_.v + at + i, left);
      Padded<V, float> g(sums + i, left);
      Padded<V, float> all;
      V::store(all.values, change(V::load(g.values), V::load(w.values), m.values, v.values));
      const Padded<V, float> r(all.values, left);
      m.copy_to(plan_.m + at + i, left);
      v.copy_to(plan_.v + at + i, left);
      V::add_squares(of_changes, V::load(r.values));
      V::add_squares(of_weights, V::load(w.values));
    }
    *weights = total(of_weights);
    *changes = total(of_changes);
  }

 private:
  F change(F g, F w, float* m_at, float* v_at) const {
    F m = V::load(m_at), v = V::load(v_at);
    Rule<Optimizer::kAdam>::template take<V>(c_, g * c_.weight, m, v);
    V::store(m_at, m);
    V::store(v_at, v);
    return Rule<Optimizer::kLamb>::template change<V>(c_, w, m, v);
  }
  static double total(const typename V::Squares& squares) {
    double lanes[kSquareLanes];
    V::store_squares(lanes, squares);
    double sum = 0;
    for (const double lane : lanes) sum = sum + lane;
    return sum;
  }

  const UpdatePlan& plan_;
  const Coefficients<V> c_;
};

template <typename V>
void lamb_moments(const UpdatePlan& plan, std::size_t begin, std::size_t end, double* weights,
                  double* changes) {
  const LambMoments<V> block(plan);
  for (std::size_t at = begin; at < end; at += kUpdateBlock)
    block(at, end - at < kUpdateBlock ? end - at : kUpdateBlock, weights++, changes++);
}

template <typename V, bool kPublish, bool kStream>
void lamb_step_range(const UpdatePlan& plan, std::size_t begin, std::size_t end) {
  const auto c = broadcast<V>(plan.coefficients);
  const auto step = [&](float* w_at, const float* m, const float* v) {
    const auto w = V::load(w_at);
    const auto updated = w - c.learning_rate * Rule<Optimizer::kLamb>::template change<V>(
                                                   c, w, V::load(m), V::load(v));
    V::store(w_at, updated);
    return updated;
  };
  std::size_t i = begin;
  for (; i + V::kWidth <= end; i += V::kWidth) {
    const auto updated = step(plan.master + i, plan.m + i, plan.v + i);
    if constexpr (kPublish)
      publish_vector<V, kStream>(plan.publish, plan.publish_dtype, i, updated);
  }
  if (i == end) return;
  Padded<V, float> w(plan.master + i, end - i);
  const Padded<V, float> m(plan.m + i, end - i), v(plan.v + i, end - i);
  const auto updated = step(w.values, m.values, v.values);
  w.copy_to(plan.master + i, end - i);
  if constexpr (!kPublish) return;
  Padded<V, float> published;  // room for either size
  publish_vector<V, false>(reinterpret_cast<std::byte*>(published.values), plan.publish_dtype, 0,
                           updated);
  const std::size_t bytes = plan.publish_dtype == Dtype::kF32 ? 4 : 2;
  std::memcpy(plan.publish + i * bytes, published.values, (end - i) * bytes);
}

template <typename V>
void lamb_step(const UpdatePlan& plan, std::size_t begin, std::size_t end) {
  if (plan.publish == nullptr) return lamb_step_range<V, false, false>(plan, begin, end);
  const std::size_t bytes = plan.publish_dtype == Dtype::kF32 ? 4 : 2;
  if ((end - begin) * bytes < kStreamBytes)
    return lamb_step_range<V, true, false>(plan, begin, end);
  const std::size_t head =
      begin + elements_to_alignment<V>(plan.publish + begin * bytes, bytes, end - begin);
  lamb_step_range<V, true, false>(plan, begin, head);
  lamb_step_range<V, true, true>(plan, head, end);
  V::fence();
}

}  // namespace leeway::kernels::simd
