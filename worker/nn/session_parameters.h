// A model's parameters in a job: weights come from its servers, gradients go there.
//
//   SessionParameters parameters(*session);
//   model.declare(parameters, seed);
//   session->start();
//   ... model.train(batch, ..., parameters.push()) ...
//
// Called from the session's thread; the session outlives it.
#pragma once

#include <utility>

#include "worker/nn/parameters.h"
#include "worker/session.h"

namespace leeway::worker::nn {

class SessionParameters final : public Parameters {
 public:
  explicit SessionParameters(Session& session) noexcept : session_(session) {}

  ParameterIndex declare(std::string name, Shape shape, std::span<const float> initial) override {
    return session_.declare(std::move(name), std::move(shape), initial).index();
  }
  std::span<const std::byte> weights(ParameterIndex parameter) const override {
    return session_.weights(Parameter(parameter));
  }
  const std::byte* device_weights(ParameterIndex parameter) const override {
    return session_.on_device() ? session_.device_weights(Parameter(parameter)) : nullptr;
  }
  Dtype weights_dtype() const noexcept override { return session_.weights_dtype(); }

  GradientSink push() {
    return [&session = session_](ParameterIndex parameter, std::span<const float> gradient) {
      if (session.on_device())
        session.push(Parameter(parameter), DeviceGradient{gradient.data(), gradient.size()});
      else
        session.push(Parameter(parameter), gradient);
    };
  }

 private:
  Session& session_;
};

}  // namespace leeway::worker::nn
