#include "worker/top_k_gradients.h"

#include <algorithm>

#include "kernels/codec.h"
#include "kernels/weighted_sum.h"

namespace leeway::worker {

TopKGradients::TopKGradients(const Layout& layout, const GradientCodec& codec,
                             std::span<const std::span<std::byte>> payloads)
    : HostGradients(layout, codec, payloads),
      residual_(layout.elements()),
      next_(layout.elements()),
      missing_(layout.parts().size()) {}

void TopKGradients::begin_step(float loss_scale) {
  loss_scale_ = loss_scale;
  for (std::size_t i = 0; i < missing_.size(); ++i) missing_[i] = layout_.parts()[i].tensors;
}

bool TopKGradients::encode(const Layout::Tensor& tensor, std::span<const float> gradient,
                           float factor) {
  kernels::weighted_sum(loss_scale_, std::span(residual_).subspan(tensor.begin, tensor.elements),
                        factor, gradient, std::span(next_).subspan(tensor.begin, tensor.elements));
  bool finite = true;
  for (const PartitionId id : tensor.parts) {
    if (--missing_[id.value()] != 0) continue;
    const Layout::Part& part = layout_.parts()[id.value()];
    finite &= kernels::encode_top_k(codec_, std::span(next_).subspan(part.begin, part.elements),
                                    1.0f / loss_scale_, payloads_[id.value()].data());
  }
  return finite;
}

void TopKGradients::end_step(bool committed, float factor) {
  if (!committed) return;
  if (factor == 1)
    std::swap(residual_, next_);
  else
    kernels::weighted_sum(factor, next_, 1 - factor, residual_, residual_);
}

}  // namespace leeway::worker
