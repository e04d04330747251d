// Whole steps through a worker's own data plane, as a session does them: cast every gradient, push,
// commit, wait for the next weights.
//
// Used from one thread. Every wait has a deadline and throws std::runtime_error.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "tests/bench/pushpull_client.h"
#include "worker/board.h"
#include "worker/data_plane.h"
#include "worker/gradient_buffer.h"

namespace leeway::bench {

class StepClient {
 public:
  StepClient(std::unique_ptr<transport::Endpoint> endpoint, const PushPullPlan& plan,
             std::uint32_t rank);

  void push_initial();  // zeros; over when the first weights are here
  Moved step(int steps);
  // Compares with the weights after so many steps.
  void check(std::uint64_t steps) const;

 private:
  template <typename Ready>
  void wait(const char* what, Ready ready);

  const PushPullPlan plan_;
  std::vector<float> gradient_;  // of one tensor
  worker::Board board_;
  worker::DataPlane data_;
  worker::Layout layout_;
  std::optional<worker::HostGradients> target_;
  std::optional<worker::GradientBuffer> gradients_;
  Clock clock_;
};

}  // namespace leeway::bench
