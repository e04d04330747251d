// One update with everything that is the same for all elements computed beforehand.
//
// Plain data, so that it can be a kernel's parameter. Lives during one call.
#pragma once

#include "kernels/optimizer.h"
#include "kernels/update_rules.h"

namespace leeway::kernels {

struct UpdatePlan {
  Optimizer optimizer = Optimizer::kSgd;
  Dtype publish_dtype = Dtype::kF16;
  Coefficients<Scalar> coefficients;
  const Gradient* gradients = nullptr;
  std::size_t gradient_count = 0;
  std::size_t elements = 0;
  float* master = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  std::byte* publish = nullptr;
};

UpdatePlan plan_update(Optimizer optimizer, const Hyper& hyper, const UpdateArgs& args);

}  // namespace leeway::kernels
