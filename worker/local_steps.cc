#include "worker/local_steps.h"

#include <algorithm>
#include <cmath>

#include "kernels/cast.h"

namespace leeway::worker {
namespace {

// The largest element of what travels lies between this and twice it: far from both ends of FP16.
constexpr int kExponent = 9;

kernels::Hyper hyper_of(const JobSettings& settings) {
  return {.learning_rate = static_cast<float>(settings.local_learning_rate),
          .momentum = static_cast<float>(settings.local_momentum),
          .beta1 = static_cast<float>(settings.beta1),
          .beta2 = static_cast<float>(settings.beta2),
          .epsilon = static_cast<float>(settings.epsilon)};
}

}  // namespace

LocalSteps::LocalSteps(const Layout& layout, const JobSettings& settings, GradientTarget& travels)
    : layout_(layout),
      travels_(travels),
      per_round_(settings.local_steps),
      optimizer_(settings.local_optimizer_type()),
      hyper_(hyper_of(settings)),
      dtype_(settings.pull_type()),
      start_(layout.elements()),
      local_(layout.elements()),
      gradient_(layout.elements()) {
  for (int i = 0; i < state_arrays(optimizer_); ++i) state_[i].resize(layout.elements());
}

bool LocalSteps::encode(const Layout::Tensor& tensor, std::span<const float> gradient,
                        float factor) {
  float* const out = gradient_.data() + tensor.begin;
  bool finite = true;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    out[i] = gradient[i] * factor;
    finite &= std::isfinite(out[i]);
  }
  return finite;
}

void LocalSteps::begin_round(std::span<const std::byte> weights) {
  kernels::widen(weights.data(), dtype_, start_);
  local_ = start_;
  for (auto& state : state_) std::ranges::fill(state, 0.0f);
  done_ = updates_ = 0;
  samples_ = 0;
}

void LocalSteps::step(float scale, bool skipped, std::uint32_t samples,
                      std::span<std::byte> weights) {
  ++done_;
  if (skipped || local_.empty()) return;
  ++updates_;
  samples_ += samples;
  const kernels::Gradient gradient{.data = reinterpret_cast<const std::byte*>(gradient_.data()),
                                   .codec = Codec::kF32,
                                   .inverse_scale = 1.0f / scale};
  kernels::UpdateArgs update{.gradients = {&gradient, 1},
                             .elements = local_.size(),
                             .master = local_.data(),
                             .publish = weights.data(),
                             .publish_dtype = dtype_,
                             .step = updates_};
  for (int i = 0; i < state_arrays(optimizer_); ++i) update.state[i] = state_[i].data();
  kernels::update(optimizer_, hyper_, {&update, 1});
}

std::optional<float> LocalSteps::end_round(std::span<std::byte> weights) {
  done_ = 0;
  kernels::convert(start_, dtype_, weights.data());
  float largest = 0;
  bool finite = true;
  for (std::size_t i = 0; i < local_.size(); ++i) {
    gradient_[i] = start_[i] - local_[i];
    finite &= std::isfinite(gradient_[i]);
    largest = std::max(largest, std::abs(gradient_[i]));
  }
  if (!finite) return std::nullopt;
  const int exponent = largest > 0 ? std::clamp(kExponent - std::ilogb(largest), -100, 100) : 0;
  const float scale = std::ldexp(1.0f, exponent);
  for (const Layout::Tensor& tensor : layout_.tensors())
    if (tensor.elements > 0 &&
        !travels_.encode(tensor, std::span(gradient_).subspan(tensor.begin, tensor.elements),
                         scale))
      return std::nullopt;
  return scale;
}

}  // namespace leeway::worker
