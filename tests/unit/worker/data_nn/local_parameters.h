// A model's parameters kept in this process, updated as a server would: FP32 masters and optimizer
// state, published copies in the pull dtype, the same kernels::update. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "common/job_settings.h"
#include "kernels/optimizer.h"
#include "worker/nn/parameters.h"

namespace leeway::worker {

struct LocalTensor {
  std::string name;
  Shape shape;
  std::vector<float> master;
  std::array<std::vector<float>, 2> state;
  std::vector<std::byte> published;
};

// What one worker pushed in one step: per parameter, in order of declaration, FP16.
struct LocalStep {
  std::vector<std::vector<std::byte>> gradients;
  double scale = 1;
  bool finite = true;
};

class LocalParameters final : public nn::Parameters {
 public:
  explicit LocalParameters(const JobSettings& settings);

  nn::ParameterIndex declare(std::string name, Shape shape,
                             std::span<const float> initial) override;
  std::span<const std::byte> weights(nn::ParameterIndex parameter) const override;
  Dtype weights_dtype() const noexcept override { return dtype_; }

  // Takes gradients of a loss that was multiplied by `scale`, as a session casts them.
  nn::GradientSink push_into(LocalStep& step, double scale) const;
  // One update: the mean of these steps, summed in their order.
  void apply(std::span<const LocalStep* const> steps);

  // weights() gives those of `age` updates ago (or the first ones) from now on.
  void look_back(std::size_t age);
  // How far look_back() may go.
  void remember(std::size_t updates);

  std::vector<LocalTensor>& tensors() noexcept { return tensors_; }
  void publish();  // after the masters were changed by hand

 private:
  using Published = std::vector<std::vector<std::byte>>;

  const Dtype dtype_;
  kernels::Optimizer optimizer_;
  kernels::Hyper hyper_;
  std::vector<LocalTensor> tensors_;
  std::uint64_t updates_ = 0;
  std::size_t remembered_ = 0;
  std::size_t age_ = 0;
  std::deque<Published> history_;  // newest last: what was published before the last updates
};

}  // namespace leeway::worker
