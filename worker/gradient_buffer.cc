#include "worker/gradient_buffer.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "kernels/codec.h"
#include "kernels/sum_of_squares.h"
#include "worker/top_k_gradients.h"

namespace leeway::worker {

std::unique_ptr<HostGradients> HostGradients::make(const Layout& layout, const GradientCodec& codec,
                                                   std::span<const std::span<std::byte>> payloads) {
  if (codec.codec == Codec::kTopK) return std::make_unique<TopKGradients>(layout, codec, payloads);
  return std::make_unique<HostGradients>(layout, codec, payloads);
}

bool HostGradients::encode(const Layout::Tensor& tensor, std::span<const float> gradient,
                           float factor) {
  bool finite = true;
  for (const PartitionId id : tensor.parts) {
    const Layout::Part& part = layout_.parts()[id.value()];
    const auto [begin, end] = shared_by(part, tensor);
    finite &= kernels::encode(codec_, gradient.subspan(begin - tensor.begin, end - begin), factor,
                              payloads_[id.value()].data(), part.elements, begin - part.begin);
  }
  return finite;
}

std::span<const float> HostGradients::add_up(std::size_t parameter, std::span<const float> gradient,
                                             bool first) {
  if (parameter >= sums_.size()) sums_.resize(parameter + 1);
  std::vector<float>& sum = sums_[parameter];
  if (first) {
    sum.assign(gradient.begin(), gradient.end());
  } else {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
  }
  return sum;
}

void HostGradients::square(std::size_t parameter, std::span<const float> gradient) {
  if (parameter >= squares_.size()) squares_.resize(parameter + 1);
  squares_[parameter] = kernels::sum_of_squares(gradient);
}

double HostGradients::squares() { return std::accumulate(squares_.begin(), squares_.end(), 0.0); }

GradientBuffer::GradientBuffer(const Layout& layout, std::uint32_t accumulate,
                               GradientTarget& target, bool norms)
    : layout_(layout),
      accumulate_(accumulate),
      target_(target),
      norms_(norms),
      pushes_(layout.tensors().size()),
      missing_(layout.parts().size()),
      poisoned_(layout.tensors().size()) {
  for (const Layout::Tensor& tensor : layout.tensors()) wanted_ += tensor.elements != 0 ? 1 : 0;
}

void GradientBuffer::begin_step() {
  complete_ = 0;
  std::fill(pushes_.begin(), pushes_.end(), 0);
  poisoned_.assign(poisoned_.size(), false);
  take_ready();
  for (std::size_t i = 0; i < missing_.size(); ++i) missing_[i] = layout_.parts()[i].tensors;
}

std::vector<PartitionId> GradientBuffer::take_ready() {
  ready_elements_ = 0;
  return std::exchange(ready_, {});
}

GradientBuffer::Added GradientBuffer::add(std::size_t parameter, std::span<const float> gradient,
                                          bool poison) {
  if (pushes_[parameter] == accumulate_) return Added::kTooOften;
  ++pushes_[parameter];
  if (poison) poisoned_[parameter] = true;
  if (accumulate_ > 1 && !gradient.empty())
    gradient = target_.add_up(parameter, gradient, pushes_[parameter] == 1);
  return pushes_[parameter] < accumulate_ ? Added::kMore : finish(parameter, gradient);
}

GradientBuffer::Added GradientBuffer::finish(std::size_t parameter,
                                             std::span<const float> gradient) {
  const Layout::Tensor& tensor = layout_.tensors()[parameter];
  if (tensor.elements == 0) return Added::kComplete;
  ++complete_;
  if (norms_) target_.square(parameter, gradient);
  bool finite = target_.encode(tensor, gradient, 1.0f / static_cast<float>(accumulate_));
  if (poisoned_[parameter]) {
    target_.poison();
    finite = false;
  }
  if (!finite) return Added::kNotFinite;
  for (const PartitionId id : tensor.parts) {
    if (--missing_[id.value()] != 0) continue;
    ready_.push_back(id);
    ready_elements_ += layout_.parts()[id.value()].elements;
  }
  return Added::kComplete;
}

double GradientBuffer::norm() const {
  return norms_ ? std::sqrt(target_.squares()) / accumulate_ : 0;
}

bool GradientBuffer::touched() const noexcept {
  return std::any_of(pushes_.begin(), pushes_.end(), [](std::uint32_t n) { return n != 0; });
}

std::optional<std::size_t> GradientBuffer::first_incomplete() const noexcept {
  for (std::size_t i = 0; i < pushes_.size(); ++i)
    if (layout_.tensors()[i].elements != 0 && pushes_[i] < accumulate_) return i;
  return std::nullopt;
}

}  // namespace leeway::worker
