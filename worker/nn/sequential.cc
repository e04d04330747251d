#include "worker/nn/sequential.h"

#include <fmt/format.h>

#include <utility>

#include "worker/nn/linear.h"

namespace leeway::worker::nn {

void Sequential::add(std::unique_ptr<Layer> layer) {
  if (!layers_.empty() && layer->inputs() != outputs())
    throw ConfigError(fmt::format("layer {} takes {} inputs, the one before it gives {}",
                                  layers_.size() + 1, layer->inputs(), outputs()));
  layers_.push_back(std::move(layer));
}

void Sequential::declare(Parameters& parameters, std::uint64_t seed) {
  for (auto& layer : layers_) layer->declare(parameters, seed);
}

void Sequential::load(const Parameters& parameters) {
  for (auto& layer : layers_) layer->load(parameters);
}

const Half* Sequential::forward(std::int64_t rows, const Half* input) {
  for (auto& layer : layers_) input = layer->forward(rows, input);
  return input;
}

void Sequential::backward(std::int64_t rows, const Half* dz, bool add, const GradientSink* sink) {
  for (std::size_t i = layers_.size(); i-- > 0;) {
    const float* gradient =
        layers_[i]->backward(rows, dz, {.add = add, .sink = sink, .input_gradient = i > 0});
    if (i > 0) dz = layers_[i - 1]->activation_backward(rows, gradient);
  }
}

Sequential multilayer_perceptron(kernels::Backend& backend,
                                 const std::vector<std::int64_t>& sizes) {
  if (sizes.size() < 2) throw ConfigError("a perceptron needs the sizes of its input and output");
  Sequential model;
  for (std::size_t i = 1; i < sizes.size(); ++i) {
    const bool last = i + 1 == sizes.size();
    model.add(std::make_unique<Linear>(backend, last ? "output" : fmt::format("hidden{}", i),
                                       sizes[i - 1], sizes[i],
                                       last ? Activation::kNone : Activation::kRelu));
  }
  return model;
}

}  // namespace leeway::worker::nn
