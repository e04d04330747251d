// A training job in one process over rails of the test's own: real shard engines and real data
// planes of workers; the test plays the scheduler and the training program.
//
// Called from the test's thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/job_settings.h"
#include "server/engine.h"
#include "tests/unit/transport/fake_cuda.h"
#include "transport/endpoint.h"
#include "transport/gpu_path.h"
#include "worker/data_plane.h"

namespace leeway::conformance {

// The elements of the model's tensors: one of several partitions, and small ones, some of one
// element, of which each server has a bundle.
inline constexpr std::array<std::int64_t, 5> kTensors = {1100, 37, 1, 45, 70};

struct TrainingOptions {
  std::size_t servers = 2, workers = 3;
  std::uint64_t steps = 6;
  bool per_clock = true;
  std::uint64_t staleness = 0;
  std::string codec = "f16";  // of gradients; top-k takes a third
  Dtype pull = Dtype::kF32;
  float clip = 1;  // every third step's gradient counts so much
  // Workers keep gradients and weights in GPUs that are none, which `cuda` drives.
  struct OnGpus {
    transport::testing::FakeCuda* cuda = nullptr;
    transport::GpuPath path = transport::GpuPath::kStaged;
  };
  std::optional<OnGpus> gpus;
  // An endpoint for each member, in the order of the calls.
  std::function<std::unique_ptr<transport::Endpoint>()> open;
};

class TrainingCluster {
 public:
  explicit TrainingCluster(const TrainingOptions& options);
  ~TrainingCluster();

  static float initial_value(std::size_t place_in_tensor) {
    return static_cast<float>(place_in_tensor % 64);
  }
  // Gives worker `rank`'s gradient of a step, from the weights that it has.
  using Gradient = std::function<void(std::size_t rank, std::uint64_t step,
                                      std::span<const float> weights, std::span<float> gradient)>;
  // Trains all steps. What went wrong, or "" and the weights that each worker had at the end:
  // kTensors one after the other. Steps have different loss scales.
  std::string train(const Gradient& gradient);
  const std::vector<std::vector<float>>& final_weights() const noexcept { return final_; }
  // Of a worker, flat as in its layout; empty but with top-k.
  std::vector<float> residual(std::size_t rank) const;
  void set_residual(std::size_t rank, std::span<const float> residual);

 private:
  struct Worker;
  void plan();
  void allocate(Worker& worker);
  // Gives the gradient of a step to the servers.
  Status push(Worker& worker, std::uint64_t step, std::span<float> gradient);
  Status weights(Worker& worker, std::span<float> weights) const;
  bool wait(Worker& worker, const std::function<bool(const worker::Board&)>& ready,
            std::string& problem) const;

  const TrainingOptions options_;
  JobSettings settings_;
  std::size_t elements_ = 0;
  std::vector<std::unique_ptr<server::Engine>> engines_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::vector<float>> final_;
};

}  // namespace leeway::conformance
