#include "tests/bench/step_client.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <stdexcept>

#include "common/half.h"
#include "common/result.h"

namespace leeway::bench {
namespace {

constexpr std::chrono::seconds kDeadline{60};
constexpr std::size_t kPushTogether = std::size_t{1} << 17;  // as a session does

worker::Layout layout_of(const PushPullPlan& plan) {
  rpc::Plan rpc;
  std::vector<worker::Declared> declared;
  for (std::size_t t = 0; t < plan.tensors; ++t) {
    rpc::TensorSpec tensor;
    tensor.name = plan.name_of(t);
    tensor.shape = {static_cast<std::int64_t>(plan.tensor_elements())};
    declared.push_back({tensor.name, tensor.shape, plan.tensor_elements()});
    rpc.tensors.push_back(std::move(tensor));
  }
  for (std::size_t p = 0; p < plan.partitions(); ++p) {
    rpc::Partition partition;
    partition.id = static_cast<std::int32_t>(p);
    partition.tensor = static_cast<std::int32_t>(plan.tensor_of(p));
    partition.first = plan.tensors == 1 ? static_cast<std::int64_t>(plan.begin(p)) : 0;
    partition.elements = static_cast<std::int64_t>(plan.length(p));
    partition.server = static_cast<std::int32_t>(plan.server_of(p));
    rpc.partitions.push_back(partition);
  }
  return value_or_throw(worker::Layout::make(rpc, declared, plan.servers, JobSettings()));
}

}  // namespace

StepClient::StepClient(std::unique_ptr<transport::Endpoint> endpoint, const PushPullPlan& plan,
                       std::uint32_t rank)
    : plan_(plan),
      gradient_(plan.tensor_elements()),
      data_(std::move(endpoint), board_),
      layout_(layout_of(plan)) {
  for (std::size_t i = 0; i < gradient_.size(); ++i) gradient_[i] = kScale * gradient_of(plan_, i);
  if (const auto status = data_.allocate(layout_, Dtype::kF16, GradientCodec{}, plan.checksum);
      !status)
    throw std::runtime_error(status.error().message);
  target_.emplace(layout_, GradientCodec{}, data_.payloads());
  gradients_.emplace(layout_, 1, *target_);
  std::vector<worker::DataPlane::Server> servers;
  for (std::uint32_t s = 0; s < plan.servers; ++s)
    servers.push_back({server_incarnation(s), plan.server_addresses[s], fmt::format("{}", s)});
  data_.connect({.self = {kJob, worker_incarnation(rank), rank},
                 .servers = std::move(servers),
                 .layout = layout_,
                 .pull_dtype = Dtype::kF16,
                 .staleness = Bound{Bound::kInfinite}});
}

template <typename Ready>
void StepClient::wait(const char* what, Ready ready) {
  std::unique_lock lock(board_.mutex);
  if (!board_.changed.wait_for(lock, kDeadline, [&] { return board_.failure || ready(); }))
    throw std::runtime_error(
        fmt::format("step {}: no {} within {} s", clock_.value(), what, kDeadline.count()));
  if (board_.failure) throw std::runtime_error(board_.failure->text);
}

void StepClient::push_initial() {
  const std::vector<float> values(layout_.elements());
  if (const auto status = data_.push_initial(values); !status)
    throw std::runtime_error(status.error().message);
  wait("confirmation of the initial values",
       [this] { return board_.initial_confirmed && board_.weights == clock_; });
}

Moved StepClient::step(int steps) {
  Moved moved{.begin = MonotonicClock::now()};
  for (int i = 0; i < steps; ++i) {
    gradients_->begin_step();
    for (std::size_t t = 0; t < plan_.tensors; ++t) {
      if (gradients_->add(t, gradient_, false) != worker::GradientBuffer::Added::kComplete)
        throw std::runtime_error("a gradient is not finite");
      if (gradients_->ready_elements() >= kPushTogether)
        data_.push(gradients_->take_ready(), kScale);
    }
    data_.end_step(gradients_->take_ready(), kScale, transport::Ending::kCommit, 1, {});
    clock_ = clock_.next();
    wait("weights", [this] { return board_.weights == clock_; });
  }
  moved.end = MonotonicClock::now();
  moved.bytes = static_cast<std::uint64_t>(steps) * plan_.elements * 2 * sizeof(Half);
  return moved;
}

void StepClient::check(std::uint64_t steps) const {
  const std::array<float, 7> wanted = weights_after(plan_, steps);
  for (const worker::Layout::Tensor& tensor : layout_.tensors())
    for (std::size_t i = 0; i < tensor.elements; ++i) {
      Half weight;
      std::memcpy(&weight, data_.weights().data() + (tensor.begin + i) * sizeof weight,
                  sizeof weight);
      if (to_float(weight) != wanted[i % 7])
        throw std::runtime_error(
            fmt::format("a weight is {} after {} steps, it should be {}: this is a bug worth "
                        "reporting",
                        to_float(weight), steps, wanted[i % 7]));
    }
}

}  // namespace leeway::bench
