#include "worker/nn/device_parameter.h"

#include <fmt/format.h>

#include <utility>

#include "kernels/cast.h"

namespace leeway::worker::nn {

namespace {

std::size_t checked_elements(const std::string& name, const Shape& shape) {
  const auto elements = element_count(shape);
  if (!elements || *elements > SIZE_MAX / sizeof(float))
    throw ConfigError(fmt::format("parameter {} cannot have the shape {}", name, to_string(shape)));
  return static_cast<std::size_t>(*elements);
}

}  // namespace

DeviceParameter::DeviceParameter(kernels::Backend& backend, std::string name, Shape shape)
    : backend_(backend),
      name_(std::move(name)),
      shape_(std::move(shape)),
      elements_(checked_elements(name_, shape_)),
      gradient_(backend.allocate(elements_ * sizeof(float))) {}

void DeviceParameter::declare(Parameters& parameters, std::span<const float> initial) {
  index_ = parameters.declare(name_, shape_, initial);
}

const Half* DeviceParameter::as_half(std::span<const std::byte> weights, Dtype dtype) {
  if (dtype == Dtype::kF16) return reinterpret_cast<const Half*>(weights.data());
  half_.resize(elements_);
  kernels::convert(elements_, weights.data(), dtype, reinterpret_cast<std::byte*>(half_.data()),
                   Dtype::kF16);
  return half_.data();
}

Half* DeviceParameter::room_on_device() {
  if (device_weights_.bytes() == 0) device_weights_ = backend_.allocate(elements_ * sizeof(Half));
  return device_weights_.as<Half>();
}

const Half* DeviceParameter::as_half_on_device(const std::byte* weights, Dtype dtype) {
  if (dtype == Dtype::kF16) return reinterpret_cast<const Half*>(weights);
  backend_.convert(static_cast<std::int64_t>(elements_), weights, dtype,
                   reinterpret_cast<std::byte*>(room_on_device()), Dtype::kF16);
  return device_weights_.as<Half>();
}

void DeviceParameter::load(const Parameters& parameters) {
  if (const std::byte* kept = parameters.device_weights(index_)) {
    kept_on_device_ = true;
    weights_ = as_half_on_device(kept, parameters.weights_dtype());
    return;
  }
  const std::span<const std::byte> weights = parameters.weights(index_);
  const Dtype dtype = parameters.weights_dtype();
  LEEWAY_CHECK(weights.size() == elements_ * size_of(dtype));
  weights_ = as_half(weights, dtype);
  if (backend_.on_host()) return;
  backend_.upload(room_on_device(), weights_, elements_ * sizeof(Half));
  weights_ = device_weights_.as<Half>();
}

void DeviceParameter::send_gradient(const GradientSink& sink) {
  if (elements_ == 0) return;
  if (backend_.on_host() || kept_on_device_) return sink(index_, {gradient(), elements_});
  host_gradient_.resize(elements_);
  backend_.download(host_gradient_.data(), gradient(), elements_ * sizeof(float));
  sink(index_, host_gradient_);
}

}  // namespace leeway::worker::nn
