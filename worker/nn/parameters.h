// All that a model needs to know of whoever keeps its weights: a job
// (worker/nn/session_parameters.h) or a plain loop in one process. Called from one thread, the
// program's.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "common/tensor.h"

namespace leeway::worker::nn {

// A parameter, in the order of declaration.
using ParameterIndex = std::size_t;

class Parameters {
 public:
  virtual ~Parameters() = default;
  // `initial` is copied.
  virtual ParameterIndex declare(std::string name, Shape shape, std::span<const float> initial) = 0;
  // Flat, in weights_dtype(). Stays where it is and as it is until the step is over.
  virtual std::span<const std::byte> weights(ParameterIndex parameter) const = 0;
  // The same in the backend's memory, when they are kept there: gradients are then taken from
  // there, too. Null: both on the host.
  virtual const std::byte* device_weights(ParameterIndex) const { return nullptr; }
  virtual Dtype weights_dtype() const noexcept = 0;
};

// Takes a finished gradient, FP32, flat, on the host or, with device_weights(), in the backend's
// memory; the span is the model's again when it returns, there for later operations of the backend.
using GradientSink = std::function<void(ParameterIndex parameter, std::span<const float> gradient)>;

}  // namespace leeway::worker::nn
