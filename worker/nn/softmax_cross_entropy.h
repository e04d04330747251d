// The loss of a classifier: the mean over samples of -ln(softmax(logits)[label]).
//
// Called from the program's thread; the backend outlives it. Loss and hits add up on the device
// until take() fetches them.
#pragma once

#include <cstdint>

#include "kernels/backend.h"

namespace leeway::worker::nn {

class SoftmaxCrossEntropy {
 public:
  SoftmaxCrossEntropy(kernels::Backend& backend, std::int64_t classes);

  // Adds the rows' losses and hits. `labels` are the host's.
  void measure(std::int64_t rows, const Half* logits, const std::int32_t* labels);
  // The same, and returns (softmax - onehot) * gradient_scale (rows x classes, FP16): with
  // gradient_scale = s / n, the gradient of s times the mean loss over n samples. Valid until the
  // next call.
  const Half* differentiate(std::int64_t rows, const Half* logits, const std::int32_t* labels,
                            double gradient_scale);

  struct Totals {
    double loss = 0;  // sum over the samples since the last take()
    std::int64_t correct = 0;
  };
  Totals take();

 private:
  // One block on the device, fetched in one copy.
  struct Sums {
    float loss = 0;
    std::int32_t correct = 0;
  };
  void reserve(std::int64_t rows);
  void run(std::int64_t rows, const Half* logits, const std::int32_t* labels, float gradient_scale,
           Half* dlogits);

  kernels::Backend& backend_;
  const std::int64_t classes_;
  kernels::Buffer sums_;
  std::int64_t reserved_rows_ = 0;
  kernels::Buffer labels_;  // empty when the device's memory is the host's
  kernels::Buffer dlogits_;
};

}  // namespace leeway::worker::nn
