#include "worker/nn/linear.h"

#include <vector>

#include "worker/nn/initialize.h"

namespace leeway::worker::nn {

using kernels::Transpose;

Linear::Linear(kernels::Backend& backend, const std::string& name, std::int64_t inputs,
               std::int64_t outputs, Activation activation)
    : backend_(backend),
      inputs_(inputs),
      outputs_(outputs),
      activation_(activation),
      weight_(backend, name + ".weight", {inputs, outputs}),
      bias_(backend, name + ".bias", {outputs}),
      not_finite_(backend.allocate(sizeof(std::int32_t))) {}

void Linear::declare(Parameters& parameters, std::uint64_t seed) {
  weight_.declare(parameters, he_normal(seed, weight_.name(), weight_.shape(), inputs_));
  bias_.declare(parameters, std::vector<float>(static_cast<std::size_t>(outputs_)));
}

void Linear::load(const Parameters& parameters) {
  weight_.load(parameters);
  bias_.load(parameters);
}

void Linear::reserve(std::int64_t rows) {
  if (rows <= reserved_rows_) return;
  const auto ins = static_cast<std::size_t>(rows * inputs_);
  const auto outs = static_cast<std::size_t>(rows * outputs_);
  z_ = backend_.allocate(outs * sizeof(float));
  output_ = backend_.allocate(outs * sizeof(Half));
  dz_ = backend_.allocate(outs * sizeof(Half));
  input_gradient_ = backend_.allocate(ins * sizeof(float));
  reserved_rows_ = rows;
}

const Half* Linear::forward(std::int64_t rows, const Half* input) {
  reserve(rows);
  input_ = input;
  backend_.gemm(Transpose::kNo, Transpose::kNo, rows, outputs_, inputs_, input, weight_.weights(),
                0.0f, z_.as<float>());
  backend_.bias_activation(rows, outputs_, z_.as<float>(), bias_.weights(),
                           activation_ == Activation::kRelu, output_.as<Half>());
  return output_.as<Half>();
}

const Half* Linear::activation_backward(std::int64_t rows, const float* output_gradient) {
  const std::int64_t elements = rows * outputs_;
  if (activation_ == Activation::kRelu)
    backend_.relu_backward(elements, output_gradient, output_.as<Half>(), dz_.as<Half>());
  else
    backend_.scale_to_half(elements, output_gradient, 1.0f, dz_.as<Half>(),
                           not_finite_.as<std::int32_t>());
  return dz_.as<Half>();
}

const float* Linear::backward(std::int64_t rows, const Half* dz, const BackwardOptions& options) {
  const float beta = options.add ? 1.0f : 0.0f;
  backend_.gemm(Transpose::kYes, Transpose::kNo, inputs_, outputs_, rows, input_, dz, beta,
                weight_.gradient());
  backend_.bias_gradient(rows, outputs_, dz, beta, bias_.gradient());
  if (options.sink != nullptr) {
    weight_.send_gradient(*options.sink);
    bias_.send_gradient(*options.sink);
  }
  if (!options.input_gradient) return nullptr;
  backend_.gemm(Transpose::kNo, Transpose::kYes, rows, inputs_, outputs_, dz, weight_.weights(),
                0.0f, input_gradient_.as<float>());
  return input_gradient_.as<float>();
}

}  // namespace leeway::worker::nn
