#include "tests/unit/worker/data_nn/local_parameters.h"

#include <algorithm>
#include <utility>

#include "common/result.h"
#include "kernels/cast.h"
#include "server/update_rule.h"

namespace leeway::worker {

LocalParameters::LocalParameters(const JobSettings& settings)
    : dtype_(settings.pull_type()),
      optimizer_(settings.optimizer_type()),
      hyper_(server::UpdateRule(settings, Clock(0)).hyper()) {}

nn::ParameterIndex LocalParameters::declare(std::string name, Shape shape,
                                            std::span<const float> initial) {
  LocalTensor tensor{std::move(name), std::move(shape), {initial.begin(), initial.end()}, {}, {}};
  LEEWAY_CHECK(element_count(tensor.shape) == tensor.master.size());
  for (int i = 0; i < kernels::state_arrays(optimizer_); ++i)
    tensor.state[static_cast<std::size_t>(i)].resize(tensor.master.size());
  tensor.published.resize(tensor.master.size() * size_of(dtype_));
  kernels::convert(tensor.master, dtype_, tensor.published.data());
  tensors_.push_back(std::move(tensor));
  return tensors_.size() - 1;
}

std::span<const std::byte> LocalParameters::weights(nn::ParameterIndex parameter) const {
  const std::size_t back = std::min(age_, history_.size());
  if (back == 0) return tensors_.at(parameter).published;
  return history_[history_.size() - back].at(parameter);
}

nn::GradientSink LocalParameters::push_into(LocalStep& step, double scale) const {
  step.gradients.resize(tensors_.size());
  step.scale = scale;
  step.finite = true;
  return [&step](nn::ParameterIndex parameter, std::span<const float> gradient) {
    auto& bytes = step.gradients.at(parameter);
    bytes.resize(gradient.size() * sizeof(Half));
    if (!kernels::scale_to_half(gradient, 1.0f, reinterpret_cast<Half*>(bytes.data())))
      step.finite = false;
  };
}

void LocalParameters::apply(std::span<const LocalStep* const> steps) {
  if (steps.empty()) return;  // a clock without a gradient changes nothing
  ++updates_;
  if (remembered_ > 0) {
    Published now;
    for (const LocalTensor& tensor : tensors_) now.push_back(tensor.published);
    history_.push_back(std::move(now));
    if (history_.size() > remembered_) history_.pop_front();
  }
  std::vector<kernels::Gradient> gradients(steps.size());
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    LocalTensor& tensor = tensors_[i];
    if (tensor.master.empty()) continue;
    for (std::size_t s = 0; s < steps.size(); ++s)
      gradients[s] = {.data = steps[s]->gradients[i].data(),
                      .codec = Codec::kF16,
                      .inverse_scale = static_cast<float>(1.0 / steps[s]->scale)};
    const kernels::UpdateArgs args{.gradients = gradients,
                                   .weight = 1.0f / static_cast<float>(steps.size()),
                                   .elements = tensor.master.size(),
                                   .master = tensor.master.data(),
                                   .state = {tensor.state[0].data(), tensor.state[1].data()},
                                   .publish = tensor.published.data(),
                                   .publish_dtype = dtype_,
                                   .step = updates_};
    kernels::update(optimizer_, hyper_, {&args, 1});
  }
}

void LocalParameters::look_back(std::size_t age) { age_ = age; }

void LocalParameters::remember(std::size_t updates) { remembered_ = updates; }

void LocalParameters::publish() {
  for (LocalTensor& tensor : tensors_)
    kernels::convert(tensor.master, dtype_, tensor.published.data());
}

}  // namespace leeway::worker
