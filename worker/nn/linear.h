// output = activation(input * weight + bias), bias and activation in one pass over the sums.
// Parameters NAME.weight (inputs x outputs, He normal) and NAME.bias (outputs, zeros).
#pragma once

#include <string>

#include "kernels/backend.h"
#include "worker/nn/device_parameter.h"
#include "worker/nn/layer.h"

namespace leeway::worker::nn {

enum class Activation { kNone, kRelu };

class Linear final : public Layer {
 public:
  // The backend outlives the layer.
  Linear(kernels::Backend& backend, const std::string& name, std::int64_t inputs,
         std::int64_t outputs, Activation activation);

  std::int64_t inputs() const noexcept override { return inputs_; }
  std::int64_t outputs() const noexcept override { return outputs_; }
  void declare(Parameters& parameters, std::uint64_t seed) override;
  void load(const Parameters& parameters) override;
  const Half* forward(std::int64_t rows, const Half* input) override;
  const Half* activation_backward(std::int64_t rows, const float* output_gradient) override;
  const float* backward(std::int64_t rows, const Half* dz, const BackwardOptions& options) override;

 private:
  void reserve(std::int64_t rows);

  kernels::Backend& backend_;
  const std::int64_t inputs_;
  const std::int64_t outputs_;
  const Activation activation_;
  DeviceParameter weight_;
  DeviceParameter bias_;

  const Half* input_ = nullptr;     // of the last forward()
  std::int64_t reserved_rows_ = 0;  // what the buffers below have room for
  kernels::Buffer z_;
  kernels::Buffer output_;
  kernels::Buffer dz_;
  kernels::Buffer input_gradient_;
  kernels::Buffer not_finite_;  // scale_to_half wants one; the session checks what is pushed
};

}  // namespace leeway::worker::nn
