#include "tests/unit/worker/data_nn/local_loop.h"

#include <algorithm>
#include <utility>

#include "kernels/backend.h"
#include "worker/data/loader.h"
#include "worker/data/sampler.h"
#include "worker/loss_scaler.h"

namespace leeway::worker {

LocalTrainingResult local_training(const data::Dataset& training, const data::Dataset& test,
                                   const LocalTrainingOptions& options) {
  const JobSettings& settings = options.settings;
  const auto backend = kernels::open_cpu_backend();
  const std::int64_t width = options.program.width;
  nn::Classifier model(
      *backend, nn::multilayer_perceptron(*backend, {static_cast<std::int64_t>(training.features()),
                                                     width, width, training.classes()}));
  LocalParameters parameters(settings);
  parameters.remember(options.delay);
  parameters.look_back(options.delay);
  model.declare(parameters, settings.seed);

  // One worker with everybody's samples: its slice of a step is the workers' slices in rank order.
  const std::uint64_t rows = std::uint64_t{options.program.batch} * options.program.accumulate;
  const data::Sampler sampler({.samples = training.samples(),
                               .batch = rows * options.workers,
                               .rank = 0,
                               .world_size = 1,
                               .seed = settings.seed});
  LocalTrainingResult result;
  result.steps = options.program.epochs * sampler.steps_per_epoch();
  data::Loader loader(training, sampler, {.first_step = 0, .end_step = result.steps});

  std::vector<LossScaler> scalers(
      options.workers, LossScaler({.initial = settings.loss_scale_initial,
                                   .min = settings.loss_scale_min,
                                   .max = settings.loss_scale_max,
                                   .growth_interval = settings.loss_scale_growth_interval}));
  std::vector<LocalStep> steps(options.workers);
  for (std::uint64_t c = 0; c < result.steps; ++c) {
    const data::Batch& batch = *value_or_throw(loader.next());
    std::vector<const LocalStep*> committed;
    double loss = 0;
    for (std::uint32_t w = 0; w < options.workers; ++w) {
      const double scale = scalers[w].scale();
      model.load(parameters);
      const auto score = model.train(static_cast<std::int64_t>(rows),
                                     batch.features.data() + w * rows * training.features(),
                                     batch.labels.data() + w * rows,
                                     {.loss_scale = scale,
                                      .gradient_factor = nn::linear_decay(c, result.steps),
                                      .parts = options.program.accumulate},
                                     parameters.push_into(steps[w], scale));
      loss += score.loss / options.workers;
      value_or_throw(scalers[w].finished(steps[w].finite));
      if (steps[w].finite)
        committed.push_back(&steps[w]);
      else
        ++result.skipped_steps;
      if (!settings.per_clock()) {
        parameters.apply(committed);
        committed.clear();
      }
    }
    parameters.apply(committed);
    result.losses.push_back(loss);
  }

  parameters.look_back(0);
  model.load(parameters);
  result.test = model.evaluate(test);
  result.tensors = std::move(parameters.tensors());
  std::ranges::sort(result.tensors, {}, &LocalTensor::name);
  return result;
}

}  // namespace leeway::worker
