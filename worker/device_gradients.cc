#include "worker/device_gradients.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <numeric>

#include "kernels/sum_of_squares.h"

namespace leeway::worker {

using transport::GpuBuffer;

std::vector<GpuBuffer::Range> ranges_of(const Layout& layout, std::vector<PartitionId> parts,
                                        std::size_t width) {
  std::ranges::sort(parts, {}, [&](PartitionId p) { return layout.parts()[p.value()].begin; });
  std::vector<GpuBuffer::Range> ranges;
  for (const PartitionId p : parts) {
    const Layout::Part& part = layout.parts()[p.value()];
    const GpuBuffer::Range range{part.begin * width, part.elements * width};
    if (!ranges.empty() && ranges.back().offset + ranges.back().size == range.offset)
      ranges.back().size += range.size;
    else
      ranges.push_back(range);
  }
  return ranges;
}

Result<std::unique_ptr<DeviceGradients>> DeviceGradients::make(kernels::Backend& backend,
                                                               std::shared_ptr<transport::Gpu> gpu,
                                                               GpuBuffer& buffer,
                                                               const Layout& layout) {
  auto seen =
      transport::HostMemory::make(sizeof(std::int32_t), transport::HostMemory::Kind::kPrivate);
  if (!seen) return tl::unexpected(std::move(seen).error());
  std::unique_ptr<DeviceGradients> made(
      new DeviceGradients(backend, std::move(gpu), buffer, layout, std::move(*seen)));
  auto pinned = made->gpu_->pin(made->seen_.bytes());
  if (!pinned) return tl::unexpected(std::move(pinned).error());
  made->pinned_ = std::move(*pinned);
  return made;
}

void DeviceGradients::begin_step(float /*loss_scale*/) {
  backend_.fill_zero(not_finite_.as<std::int32_t>(), sizeof(std::int32_t));
}

bool DeviceGradients::encode(const Layout::Tensor& tensor, std::span<const float> gradient,
                             float factor) {
  backend_.scale_to_half(static_cast<std::int64_t>(gradient.size()), gradient.data(), factor,
                         reinterpret_cast<Half*>(buffer_.device()) + tensor.begin,
                         not_finite_.as<std::int32_t>());
  return true;
}

void DeviceGradients::poison(const Layout::Tensor& tensor) {
  const Half infinity = to_half(std::numeric_limits<float>::infinity());
  backend_.upload(reinterpret_cast<Half*>(buffer_.device()) + tensor.begin, &infinity,
                  sizeof infinity);
  const std::int32_t yes = 1;
  backend_.upload(not_finite_.as<std::int32_t>(), &yes, sizeof yes);
}

void DeviceGradients::square(std::size_t parameter, std::span<const float> gradient) {
  if (first_square_.empty()) {
    first_square_ = {0};
    for (const Layout::Tensor& tensor : layout_.tensors())
      first_square_.push_back(first_square_.back() +
                              (tensor.elements + kernels::kNormBlock - 1) / kernels::kNormBlock);
    squares_ = backend_.allocate(first_square_.back() * sizeof(double));
    backend_.fill_zero(squares_.as<double>(), first_square_.back() * sizeof(double));
  }
  backend_.block_squares(static_cast<std::int64_t>(gradient.size()), gradient.data(),
                         squares_.as<double>() + first_square_[parameter]);
}

// Block by block and parameter by parameter, as kernels::sum_of_squares() on the host.
double DeviceGradients::squares() {
  if (first_square_.empty()) return 0;
  std::vector<double> blocks(first_square_.back());
  backend_.download(blocks.data(), squares_.as<double>(), blocks.size() * sizeof(double));
  double total = 0;
  for (std::size_t p = 0; p + 1 < first_square_.size(); ++p)
    total +=
        std::accumulate(blocks.begin() + static_cast<std::ptrdiff_t>(first_square_[p]),
                        blocks.begin() + static_cast<std::ptrdiff_t>(first_square_[p + 1]), 0.0);
  return total;
}

// Copies go in order, so the value that comes before a part is as new as the part.
Status DeviceGradients::look() {
  if (auto s = gpu_->after_program(); !s) return s;
  return gpu_->to_host(seen_.bytes().data(), not_finite_.as<std::byte>(), sizeof(std::int32_t));
}

bool DeviceGradients::finite() const noexcept {
  auto& seen = *reinterpret_cast<std::int32_t*>(seen_.bytes().data());
  return std::atomic_ref(seen).load(std::memory_order_relaxed) == 0;
}

Status DeviceGradients::publish(std::vector<PartitionId> parts, std::function<void()> send) {
  if (auto s = look(); !s) return s;
  return buffer_.publish(ranges_of(layout_, std::move(parts), sizeof(Half)),
                         [this, send = std::move(send)] {
                           if (finite()) send();
                         });
}

Result<bool> DeviceGradients::finish() {
  if (auto s = look(); !s) return tl::unexpected(std::move(s).error());
  if (auto s = gpu_->synchronize(); !s) return tl::unexpected(std::move(s).error());
  return finite();
}

}  // namespace leeway::worker
