// One parameter where the model computes: its weights as FP16 and its gradient as FP32, both in the
// backend's memory. Where the session has them there, or the backend's memory is the host's,
// neither is copied: weights that travel as FP16 are used where they are.
//
// Called from the program's thread; the backend outlives it. Between declare() and load() there are
// no weights.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "worker/nn/parameters.h"

namespace leeway::worker::nn {

class DeviceParameter {
 public:
  DeviceParameter(kernels::Backend& backend, std::string name, Shape shape);

  const std::string& name() const noexcept { return name_; }
  const Shape& shape() const noexcept { return shape_; }

  void declare(Parameters& parameters, std::span<const float> initial);
  // Takes over the weights of the step that begins; `parameters` keeps them until it is over.
  void load(const Parameters& parameters);

  const Half* weights() const noexcept { return weights_; }
  float* gradient() const noexcept { return gradient_.as<float>(); }
  // Gives the gradient to `sink`; nothing when the parameter has no elements.
  void send_gradient(const GradientSink& sink);

 private:
  const Half* as_half(std::span<const std::byte> weights, Dtype dtype);
  const Half* as_half_on_device(const std::byte* weights, Dtype dtype);
  Half* room_on_device();

  kernels::Backend& backend_;
  std::string name_;
  Shape shape_;
  std::size_t elements_;
  ParameterIndex index_ = 0;

  const Half* weights_ = nullptr;   // in the session, half_, or device_weights_
  std::vector<Half> half_;          // converted weights, where they do not travel as FP16
  bool kept_on_device_ = false;     // by the session, gradients too
  kernels::Buffer device_weights_;  // copied or converted
  kernels::Buffer gradient_;
  std::vector<float> host_gradient_;
};

}  // namespace leeway::worker::nn
