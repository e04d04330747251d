#include "worker/step_gradients.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/log.h"

namespace leeway::worker {

using transport::Ending;

namespace {

// Gradients wait for each other until there are so many elements, or the step ends.
constexpr std::size_t kSendTogether = std::size_t{1} << 17;

}  // namespace

Result<std::unique_ptr<GradientTarget>> make_host_buffers(DataPlane& data, const Layout& layout,
                                                          const JobSettings& settings) {
  const GradientCodec codec = settings.gradients();
  const bool checksum = settings.checksum.value != "off";
  if (auto s = data.allocate(layout, settings.pull_type(), codec, checksum); !s)
    return tl::unexpected(std::move(s).error());
  return HostGradients::make(layout, codec, data.payloads());
}

StepGradients::StepGradients(const Layout& layout, const JobSettings& settings,
                             std::uint32_t accumulate, std::unique_ptr<GradientTarget> travels,
                             DataPlane& data)
    : layout_(layout),
      clip_norm_(settings.clip_norm),
      data_(data),
      travels_(std::move(travels)),
      local_(settings.local_steps > 1 ? std::make_optional<LocalSteps>(layout, settings, *travels_)
                                      : std::nullopt),
      buffer_(layout, accumulate, local_ ? static_cast<GradientTarget&>(*local_) : *travels_,
              clip_norm_ > 0) {}

void StepGradients::begin_step(float loss_scale) {
  loss_scale_ = loss_scale;
  skip_ = false;
  if (local_ && local_->done() == 0) local_->begin_round(data_.weights());
  travels_->begin_step(loss_scale);
  buffer_.begin_step();
}

Status StepGradients::add(std::size_t parameter, std::span<const float> gradient, bool poison) {
  const auto added = buffer_.add(parameter, gradient, poison);
  if (added == GradientBuffer::Added::kNotFinite) skip_ = true;
  // Of a step that will be skipped nothing further needs to travel.
  if (added != GradientBuffer::Added::kComplete || skip_ ||
      buffer_.ready_elements() < kSendTogether)
    return {};
  return send_ready();
}

Status StepGradients::send_ready() {
  if (local_ || skip_) return {};
  auto parts = buffer_.take_ready();
  return parts.empty() ? Status{} : send(std::move(parts));
}

Status StepGradients::send(std::vector<PartitionId> parts) {
  sent_ += parts.size();
  return travels_->publish(
      parts, [this, parts, scale = loss_scale_]() mutable { data_.push(std::move(parts), scale); });
}

Status StepGradients::settle() {
  if (travels_->asynchronous()) {
    if (auto s = send_ready(); !s) return s;
    const auto finite = travels_->finish();
    if (!finite) return tl::unexpected(finite.error());
    skip_ = skip_ || !*finite;
  }
  norm_ = skip_ ? 0 : buffer_.norm() / loss_scale_;
  return {};
}

bool StepGradients::end_step(End end) {
  // The gradients left before their norm was known: the servers scale them down when they undo the
  // loss scale.
  const double factor = norm_ > clip_norm_ ? clip_norm_ / norm_ : 1;
  const float clip = std::max(static_cast<float>(factor), std::numeric_limits<float>::min());
  travels_->end_step(!skip_, clip);
  if (local_) {
    local_->step(loss_scale_ / clip, skip_, end.samples, data_.own_weights());
    return local_->done() == local_->per_round() && end_round(end.clock, std::move(end.state));
  }
  std::vector<PartitionId> rest;
  if (!skip_) rest = buffer_.take_ready();
  sent_ += rest.size();
  data_.end_step(std::move(rest), loss_scale_, skip_ ? Ending::kAbandon : Ending::kCommit,
                 end.samples, std::move(end.state), clip);
  return true;
}

// The change of the weights goes out as a gradient would.
bool StepGradients::end_round(Clock clock, std::vector<std::byte> state) {
  if (!local_ || local_->done() == 0) return false;
  const std::uint32_t samples = local_->samples();
  const std::optional<float> scale = local_->end_round(data_.own_weights());
  if (!scale)
    log::warning(
        "dropped round {} of local steps: its weights are not finite; lower "
        "local_learning_rate",
        clock.value());
  std::vector<PartitionId> parts;
  if (scale)
    for (const auto& shard : layout_.shards())
      parts.insert(parts.end(), shard.begin(), shard.end());
  sent_ += parts.size();
  data_.end_step(std::move(parts), scale.value_or(1), scale ? Ending::kCommit : Ending::kAbandon,
                 samples, std::move(state), 1);
  return true;
}

Clock StepGradients::program_clock(Clock rounds) const noexcept {
  return local_ ? Clock(rounds.value() * local_->per_round() + local_->done()) : rounds;
}

}  // namespace leeway::worker
