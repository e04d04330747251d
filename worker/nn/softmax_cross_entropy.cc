#include "worker/nn/softmax_cross_entropy.h"

#include <cstddef>

namespace leeway::worker::nn {

SoftmaxCrossEntropy::SoftmaxCrossEntropy(kernels::Backend& backend, std::int64_t classes)
    : backend_(backend), classes_(classes), sums_(backend.allocate(sizeof(Sums))) {}

void SoftmaxCrossEntropy::reserve(std::int64_t rows) {
  if (rows <= reserved_rows_) return;
  const auto samples = static_cast<std::size_t>(rows);
  dlogits_ = backend_.allocate(samples * static_cast<std::size_t>(classes_) * sizeof(Half));
  if (!backend_.on_host()) labels_ = backend_.allocate(samples * sizeof(std::int32_t));
  reserved_rows_ = rows;
}

void SoftmaxCrossEntropy::run(std::int64_t rows, const Half* logits, const std::int32_t* labels,
                              float gradient_scale, Half* dlogits) {
  if (!backend_.on_host()) {
    const auto bytes = static_cast<std::size_t>(rows) * sizeof(std::int32_t);
    backend_.upload(labels_.as<std::int32_t>(), labels, bytes);
    labels = labels_.as<std::int32_t>();
  }
  Sums* sums = sums_.as<Sums>();  // only its members' addresses are taken: it is the device's
  backend_.softmax_cross_entropy(rows, classes_, logits, labels, gradient_scale, &sums->loss,
                                 &sums->correct, dlogits);
}

void SoftmaxCrossEntropy::measure(std::int64_t rows, const Half* logits,
                                  const std::int32_t* labels) {
  reserve(rows);
  run(rows, logits, labels, 0.0f, nullptr);
}

const Half* SoftmaxCrossEntropy::differentiate(std::int64_t rows, const Half* logits,
                                               const std::int32_t* labels, double gradient_scale) {
  reserve(rows);
  run(rows, logits, labels, static_cast<float>(gradient_scale), dlogits_.as<Half>());
  return dlogits_.as<Half>();
}

SoftmaxCrossEntropy::Totals SoftmaxCrossEntropy::take() {
  Sums sums;
  backend_.download(&sums, sums_.as<Sums>(), sizeof(sums));
  backend_.fill_zero(sums_.as<Sums>(), sizeof(sums));
  return {sums.loss, sums.correct};
}

}  // namespace leeway::worker::nn
