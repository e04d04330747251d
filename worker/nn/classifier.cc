#include "worker/nn/classifier.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace leeway::worker::nn {

namespace {

constexpr std::uint64_t kEvaluationRows = 1000;

}  // namespace

Classifier::Classifier(kernels::Backend& backend, Sequential model)
    : backend_(backend), model_(std::move(model)), loss_(backend, model_.outputs()) {}

const Half* Classifier::on_device(std::int64_t rows, const Half* features) {
  if (backend_.on_host()) return features;
  const std::size_t bytes = static_cast<std::size_t>(rows * model_.inputs()) * sizeof(Half);
  if (features_.bytes() < bytes) features_ = backend_.allocate(bytes);
  backend_.upload(features_.as<Half>(), features, bytes);
  return features_.as<Half>();
}

Score Classifier::train(std::int64_t rows, const Half* features, const std::int32_t* labels,
                        const TrainOptions& options, const GradientSink& sink) {
  LEEWAY_CHECK(options.parts > 0 && rows > 0 && rows % options.parts == 0);
  const std::int64_t part_rows = rows / options.parts;
  const double gradient_scale =
      options.loss_scale * options.gradient_factor / static_cast<double>(rows);
  for (std::uint32_t part = 0; part < options.parts; ++part) {
    const std::int64_t first = part * part_rows;
    const Half* input = on_device(part_rows, features + first * model_.inputs());
    const Half* logits = model_.forward(part_rows, input);
    const Half* dlogits = loss_.differentiate(part_rows, logits, labels + first, gradient_scale);
    const bool last = part + 1 == options.parts;
    model_.backward(part_rows, dlogits, part > 0, last ? &sink : nullptr);
  }
  const auto totals = loss_.take();
  return {totals.loss / static_cast<double>(rows),
          static_cast<double>(totals.correct) / static_cast<double>(rows)};
}

Score Classifier::evaluate(const data::Dataset& dataset) {
  const std::uint64_t samples = dataset.samples();
  const std::uint64_t most = std::min(samples, kEvaluationRows);
  std::vector<std::uint64_t> indices(most);
  std::vector<Half> features(most * dataset.features());
  std::vector<std::int32_t> labels(most);
  Score score;
  for (std::uint64_t first = 0; first < samples; first += most) {
    const std::uint64_t count = std::min(most, samples - first);
    std::iota(indices.begin(), indices.end(), first);
    value_or_throw(dataset.read(std::span(indices).first(count), features.data(), labels.data()));
    const auto rows = static_cast<std::int64_t>(count);
    loss_.measure(rows, model_.forward(rows, on_device(rows, features.data())), labels.data());
    const auto totals = loss_.take();
    score.loss += totals.loss / static_cast<double>(samples);
    score.accuracy += static_cast<double>(totals.correct) / static_cast<double>(samples);
  }
  return score;
}

}  // namespace leeway::worker::nn
