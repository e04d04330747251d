// Layers one after another. Called from the program's thread; the backend of its layers outlives
// it.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "kernels/backend.h"
#include "worker/nn/layer.h"

namespace leeway::worker::nn {

class Sequential {
 public:
  // Throws ConfigError when the layer does not take what the one before it gives.
  void add(std::unique_ptr<Layer> layer);

  std::int64_t inputs() const noexcept { return layers_.empty() ? 0 : layers_.front()->inputs(); }
  std::int64_t outputs() const noexcept { return layers_.empty() ? 0 : layers_.back()->outputs(); }

  void declare(Parameters& parameters, std::uint64_t seed);
  void load(const Parameters& parameters);

  // rows x inputs() -> rows x outputs(), both in the backend's memory.
  const Half* forward(std::int64_t rows, const Half* input);
  // `dz` is the gradient before the last layer's activation. Gradients go to `sink` layer by layer,
  // the last layer's first, so that they travel while the rest is computed; with `sink` null they
  // stay to be added to. `add`: they come on top of those that stayed.
  void backward(std::int64_t rows, const Half* dz, bool add, const GradientSink* sink);

 private:
  std::vector<std::unique_ptr<Layer>> layers_;
};

// A perceptron with layers sizes[0] x sizes[1], sizes[1] x sizes[2], ..., ReLU between them and
// none after the last; they are called hidden1, hidden2, ..., output.
Sequential multilayer_perceptron(kernels::Backend& backend, const std::vector<std::int64_t>& sizes);

}  // namespace leeway::worker::nn
