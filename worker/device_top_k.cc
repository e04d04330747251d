#include "worker/device_top_k.h"

#include <utility>

namespace leeway::worker {

DeviceTopK::DeviceTopK(kernels::Backend& backend, const Layout& layout, const GradientCodec& codec,
                       std::byte* payloads, const std::vector<Place>& places,
                       std::int32_t* not_finite)
    : backend_(backend),
      layout_(layout),
      codec_(codec),
      payloads_(payloads),
      places_(places),
      not_finite_(not_finite),
      residual_(backend.allocate(layout.elements() * sizeof(float))),
      next_(backend.allocate(layout.elements() * sizeof(float))),
      missing_(layout.parts().size()) {}

void DeviceTopK::begin_step(float loss_scale) {
  loss_scale_ = loss_scale;
  for (std::size_t i = 0; i < missing_.size(); ++i) missing_[i] = layout_.parts()[i].tensors;
}

void DeviceTopK::encode(const Layout::Tensor& tensor, std::span<const float> gradient,
                        float factor) {
  backend_.weighted_sum(static_cast<std::int64_t>(gradient.size()), loss_scale_,
                        residual_.as<float>(tensor.begin), factor, gradient.data(),
                        next_.as<float>(tensor.begin));
  complete_.clear();
  for (const PartitionId id : tensor.parts) {
    if (--missing_[id.value()] != 0) continue;
    const Layout::Part& part = layout_.parts()[id.value()];
    complete_.push_back(
        {next_.as<float>(part.begin), part.elements, payloads_ + places_[id.value()].offset});
  }
  if (!complete_.empty()) backend_.encode_top_k(codec_, complete_, 1.0f / loss_scale_, not_finite_);
}

void DeviceTopK::end_step(bool committed, float factor) {
  if (!committed) return;
  if (factor == 1)
    std::swap(residual_, next_);
  else
    backend_.weighted_sum(static_cast<std::int64_t>(layout_.elements()), factor, next_.as<float>(),
                          1 - factor, residual_.as<float>(), residual_.as<float>());
}

std::vector<float> DeviceTopK::residual() {
  std::vector<float> residual(layout_.elements());
  backend_.download(residual.data(), residual_.as<float>(), residual.size() * sizeof(float));
  return residual;
}

void DeviceTopK::set_residual(std::span<const float> residual) {
  backend_.upload(residual_.as<float>(), residual.data(), residual.size_bytes());
}

}  // namespace leeway::worker
