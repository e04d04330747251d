// A job without a job: W workers' steps computed one after another in this process, with the model,
// the sampler, the casts and the updates that a real job uses.
//
// With update = per_clock and delay 0 the result is, bit by bit on the CPU back end, that of a job
// at staleness 0 with `update = per_clock` and fashion_mnist's flags, whatever its number of
// servers: ModelDigest over `tensors` equals leeway-ckpt's. With per_push or a delay it foretells
// how a job with stale weights trains.
#pragma once

#include <cstdint>
#include <vector>

#include "common/job_settings.h"
#include "examples/fashion_mnist_flags.h"
#include "tests/unit/worker/data_nn/local_parameters.h"
#include "worker/data/dataset.h"
#include "worker/nn/classifier.h"

namespace leeway::worker {

// By default what fashion_mnist does without flags, in a job without settings of its own.
struct LocalTrainingOptions {
  LocalTrainingOptions() { settings.learning_rate = program.learning_rate; }

  examples::FashionMnistFlags program;  // epochs, batch, width and accumulate count here
  // The optimizer and its numbers, update, pull_dtype, loss_scale_*, seed. Staleness is `delay`.
  JobSettings settings;
  std::uint32_t workers = 3;
  std::size_t delay = 0;  // each step uses the weights of so many updates ago
};

struct LocalTrainingResult {
  std::vector<LocalTensor> tensors;  // in ascending name order; masters are FP32
  nn::Score test;                    // of the last published weights
  std::uint64_t steps = 0;           // of each worker
  std::uint64_t skipped_steps = 0;   // of all workers
  std::vector<double> losses;        // one a step, mean over the workers
};

LocalTrainingResult local_training(const data::Dataset& training, const data::Dataset& test,
                                   const LocalTrainingOptions& options);

}  // namespace leeway::worker
