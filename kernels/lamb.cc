#include "kernels/lamb.h"

#include <cmath>
#include <vector>

#include "kernels/cpu_kernels.h"
#include "kernels/scalar.h"
#include "kernels/sum_of_squares.h"

namespace leeway::kernels {
namespace {

double add_lanes(const double* lanes) {
  double sum = 0;
  for (std::size_t lane = 0; lane < kSquareLanes; ++lane) sum = sum + lanes[lane];
  return sum;
}

}  // namespace

void scalar::lamb_moments(const UpdatePlan& plan, std::size_t begin, std::size_t end,
                          double* weights, double* changes) {
  const Coefficients<Scalar>& c = plan.coefficients;
  for (std::size_t at = begin; at < end; at += kNormBlock) {
    double squares[2][kSquareLanes] = {};
    for (std::size_t i = at; i < end && i < at + kNormBlock; ++i) {
      const float w = plan.master[i];
      Rule<Optimizer::kAdam>::take<Scalar>(c, sum_gradients(plan, i) * c.weight, plan.m[i],
                                           plan.v[i]);
      const double change = Rule<Optimizer::kLamb>::change<Scalar>(c, w, plan.m[i], plan.v[i]);
      const std::size_t lane = (i - at) % kSquareLanes;
      squares[0][lane] += static_cast<double>(w) * w;
      squares[1][lane] += change * change;
    }
    *weights++ = add_lanes(squares[0]);
    *changes++ = add_lanes(squares[1]);
  }
}

void scalar::lamb_step(const UpdatePlan& plan, std::size_t begin, std::size_t end) {
  const Coefficients<Scalar>& c = plan.coefficients;
  for (std::size_t i = begin; i < end; ++i) {
    const float w = plan.master[i];
    plan.master[i] =
        w - c.learning_rate * Rule<Optimizer::kLamb>::change<Scalar>(c, w, plan.m[i], plan.v[i]);
    if (plan.publish != nullptr) publish_element(plan, i, plan.master[i]);
  }
}

double trust_ratio(const NormSums& tensor) {
  const double weights = std::sqrt(tensor.weights.value());
  const double changes = std::sqrt(tensor.changes.value());
  const bool usable =
      weights > 0 && changes > 0 && std::isfinite(weights) && std::isfinite(changes);
  return usable ? weights / changes : 1;
}

NormSums lamb_moments(const Hyper& hyper, const UpdateArgs& args, std::size_t begin,
                      std::size_t end) {
  const std::size_t blocks = (end - begin + kNormBlock - 1) / kNormBlock;
  std::vector<double> weights(blocks), changes(blocks);
  cpu_kernels().lamb_moments(plan_update(Optimizer::kLamb, hyper, args), begin, end, weights.data(),
                             changes.data());
  NormSums sums;
  for (std::size_t b = 0; b < blocks; ++b) {
    sums.weights.add(weights[b]);
    sums.changes.add(changes[b]);
  }
  return sums;
}

void lamb_step(const Hyper& hyper, const UpdateArgs& args, std::size_t begin, std::size_t end,
               const NormSums& tensor) {
  UpdatePlan plan = plan_update(Optimizer::kLamb, hyper, args);
  plan.coefficients.learning_rate = static_cast<float>(static_cast<double>(hyper.learning_rate) *
                                                       args.rate * trust_ratio(tensor));
  cpu_kernels().lamb_step(plan, begin, end);
}

}  // namespace leeway::kernels
