// A part of a model between two matrices of activations, one row a sample. Activations and the
// gradients that enter GEMMs are FP16, sums and parameter gradients FP32.
//
//   forward:   input (FP16) -> [linear part] -> z -> [activation] -> output (FP16)
//   backward:  gradient of output (FP32, from the next layer) -> activation_backward -> dz (FP16)
//              dz -> backward -> parameter gradients, gradient of input (FP32)
//
// The two halves of backward are apart because a loss gives dz of the last layer directly.
//
// Called from the program's thread. Matrices that a call returns are in the backend's memory,
// belong to the layer, and are valid until the same call is made again.
#pragma once

#include <cstdint>

#include "common/half.h"
#include "worker/nn/parameters.h"

namespace leeway::worker::nn {

struct BackwardOptions {
  bool add = false;                    // to the parameter gradients that are there (accumulation)
  const GradientSink* sink = nullptr;  // who takes them when they are finished; null = not yet
  bool input_gradient = true;          // the first layer of a model needs none
};

class Layer {
 public:
  virtual ~Layer() = default;
  virtual std::int64_t inputs() const noexcept = 0;
  virtual std::int64_t outputs() const noexcept = 0;

  virtual void declare(Parameters& parameters, std::uint64_t seed) = 0;
  virtual void load(const Parameters& parameters) = 0;

  // `input` stays as it is until backward() is over.
  virtual const Half* forward(std::int64_t rows, const Half* input) = 0;
  virtual const Half* activation_backward(std::int64_t rows, const float* output_gradient) = 0;
  // Null when options.input_gradient is false.
  virtual const float* backward(std::int64_t rows, const Half* dz,
                                const BackwardOptions& options) = 0;
};

}  // namespace leeway::worker::nn
