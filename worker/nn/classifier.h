// A model that tells classes apart, with its loss: what the steps of a training program need.
//
//   Classifier model(*backend, multilayer_perceptron(*backend, {784, 256, 10}));
//   model.declare(parameters, seed);
//   every step:  model.load(parameters);
//                Score score = model.train(rows, features, labels, {...}, push);
//   at the end:  model.load(parameters);  Score score = model.evaluate(test_set);
//
// Called from the program's thread; features and labels are in the host's memory.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "worker/data/dataset.h"
#include "worker/nn/sequential.h"
#include "worker/nn/softmax_cross_entropy.h"

namespace leeway::worker::nn {

struct Score {
  double loss = 0;      // mean cross-entropy
  double accuracy = 0;  // share of samples whose largest logit is their label
};

// The share of the learning rate that is left at a step when it falls in a line to zero at the last
// one, so that training ends at rest instead of in the noise of its last samples. It depends on the
// step alone, as the order of the data does.
constexpr double linear_decay(std::uint64_t step, std::uint64_t steps) noexcept {
  return step < steps ? static_cast<double>(steps - step) / static_cast<double>(steps) : 0.0;
}

struct TrainOptions {
  double loss_scale = 1;
  // Multiplies the gradients and not the loss that is reported. For sgd and momentum it acts as a
  // factor of the learning rate; adam divides it out.
  double gradient_factor = 1;
  // The rows are computed in so many equal parts, one after another, for models whose activations
  // for all of them do not fit: the gradients add up in FP32 and are given away with the last part.
  std::uint32_t parts = 1;
};

class Classifier {
 public:
  // The backend outlives it.
  Classifier(kernels::Backend& backend, Sequential model);

  void declare(Parameters& parameters, std::uint64_t seed) { model_.declare(parameters, seed); }
  // Takes over the weights; to be called whenever they are new.
  void load(const Parameters& parameters) { model_.load(parameters); }

  // Forward and backward: `sink` gets the gradient of loss_scale * gradient_factor * mean loss,
  // each parameter once, the last layer's first. `rows` is a multiple of options.parts.
  Score train(std::int64_t rows, const Half* features, const std::int32_t* labels,
              const TrainOptions& options, const GradientSink& sink);
  // Forward over a whole data set. Its errors are ConfigErrors.
  Score evaluate(const data::Dataset& dataset);

 private:
  const Half* on_device(std::int64_t rows, const Half* features);

  kernels::Backend& backend_;
  Sequential model_;
  SoftmaxCrossEntropy loss_;
  kernels::Buffer features_;  // empty when the device's memory is the host's
};

}  // namespace leeway::worker::nn
