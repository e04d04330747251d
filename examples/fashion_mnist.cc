// Trains a perceptron on Fashion-MNIST as one worker of a Leeway job. Start it with leeway-run:
//
//   leeway-run --servers 2 --workers 3 --staleness 2 -- fashion_mnist --epochs 5
//
// It is also the program to copy for a model of your own: main() goes through a job from joining it
// to its last metric, and uses nothing but public headers.

#include "worker/data/fashion_mnist.h"

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <variant>

#include "common/log.h"
#include "examples/fashion_mnist_flags.h"
#include "kernels/backend.h"
#include "worker/data/loader.h"
#include "worker/data/sampler.h"
#include "worker/nn/classifier.h"
#include "worker/nn/sequential.h"
#include "worker/nn/session_parameters.h"
#include "worker/session.h"

namespace {

using leeway::examples::FashionMnistFlags;
using leeway::worker::data::FashionMnist;
namespace data = leeway::worker::data;
namespace nn = leeway::worker::nn;

void train(const FashionMnistFlags& flags) {
  // The data first: what can be missing should be missed before anybody waits for this worker.
  const auto training =
      leeway::value_or_throw(FashionMnist::open(flags.data, FashionMnist::Part::kTrain));
  const auto backend = leeway::kernels::open_backend(flags.device);

  // Join the job. leeway-run has put its address into the environment. The settings are defaults of
  // this program: `leeway-run --set learning_rate=...` wins.
  leeway::worker::SessionOptions options;
  options.device = backend.get();
  options.settings["learning_rate"] = fmt::format("{}", flags.learning_rate);
  if (flags.seed) options.settings["seed"] = fmt::format("{}", *flags.seed);
  const auto session = leeway::worker::Session::from_environment(options);

  // One worker measures at the end, and finds now whether it can.
  std::optional<FashionMnist> test;
  if (session->rank() == 0)
    test = leeway::value_or_throw(FashionMnist::open(flags.data, FashionMnist::Part::kTest));

  // The model. Its first weights come from the seed and the names of its tensors, and the first
  // worker's are everybody's.
  const auto width = static_cast<std::int64_t>(flags.width);
  const auto pixels = static_cast<std::int64_t>(training.features());
  nn::Classifier model(
      *backend, nn::multilayer_perceptron(*backend, {pixels, width, width, training.classes()}));
  nn::SessionParameters parameters(*session);
  const std::uint64_t seed = flags.seed.value_or(session->settings().seed);
  model.declare(parameters, seed);
  session->start();

  // This worker's part of each step depends on the step alone, so a job that was interrupted goes
  // on with the images it would have seen. clock() is above 0 then.
  const std::uint64_t rows = std::uint64_t{flags.batch} * flags.accumulate;
  const data::Sampler sampler({.samples = training.samples(),
                               .batch = rows,
                               .rank = session->rank(),
                               .world_size = session->world_size(),
                               .seed = seed});
  const std::uint64_t steps = flags.epochs * sampler.steps_per_epoch();
  data::Loader loader(training, sampler,
                      {.first_step = session->clock().value(), .end_step = steps});
  leeway::log::info(
      "training on {} with {} of {} images a step, {} steps an epoch ({} images left "
      "out of each), seed {}, from {}",
      backend->name(), rows, training.samples(), sampler.steps_per_epoch(),
      sampler.dropped_per_epoch(), seed, flags.data.string());

  // A step: weights as new as the staleness bound asks; forward and backward, each gradient pushed
  // as soon as it is there; commit, which makes the step count everywhere or nowhere. The learning
  // rate falls in a line to zero at the last step.
  bool stopped = false;
  while (session->clock().value() < steps) {
    if (!session->begin_step()) {
      stopped = true;
      break;
    }
    const data::Batch& batch = *leeway::value_or_throw(loader.next());
    model.load(parameters);
    if (test && flags.target_accuracy > 0 && batch.step % flags.evaluate_every == 0 &&
        model.evaluate(*test).accuracy >= flags.target_accuracy)
      session->stop(fmt::format("test accuracy {} after {} steps of its own", flags.target_accuracy,
                                batch.step));
    const nn::Score score = model.train(static_cast<std::int64_t>(batch.rows),
                                        batch.features.data(), batch.labels.data(),
                                        {.loss_scale = session->loss_scale(),
                                         .gradient_factor = nn::linear_decay(batch.step, steps),
                                         .parts = flags.accumulate},
                                        parameters.push());
    session->note_loading(loader.take_seconds_waited());
    session->commit({.samples = static_cast<std::uint32_t>(batch.rows),
                     .loss = score.loss,
                     .epoch = static_cast<double>(batch.step + 1) /
                              static_cast<double>(sampler.steps_per_epoch())});
  }

  // A job that was told to stop has its checkpoint; one that came to its end, or to its target, is
  // measured, by one worker.
  if (!test || (stopped && flags.target_accuracy == 0)) return session->finish({});
  session->pull_final();
  model.load(parameters);
  const nn::Score score = model.evaluate(*test);
  session->finish({{"test_accuracy", score.accuracy}, {"test_loss", score.loss}});
}

}  // namespace

int main(int argc, char** argv) {
  leeway::log::start("fashion_mnist");  // the session puts the worker's name in its place
  const auto parsed = leeway::examples::parse_fashion_mnist_flags(argc, argv);
  if (const auto* goodbye = std::get_if<leeway::examples::Goodbye>(&parsed)) {
    std::fputs(goodbye->text.c_str(), goodbye->exit_code == 0 ? stdout : stderr);
    return goodbye->exit_code;
  }
  try {
    train(std::get<FashionMnistFlags>(parsed));
    return 0;
  } catch (const std::exception& error) {
    leeway::log::error("{}", error.what());
    return 1;
  }
}
