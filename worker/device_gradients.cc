#include "worker/device_gradients.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <numeric>

#include "kernels/sum_of_squares.h"

namespace leeway::worker {

using transport::GpuBuffer;

namespace {

// In their order in memory; those between whose lines of `line` bytes nothing lies become one.
std::vector<GpuBuffer::Range> joined(std::vector<GpuBuffer::Range> ranges, std::size_t line) {
  std::ranges::sort(ranges, {}, &GpuBuffer::Range::offset);
  std::vector<GpuBuffer::Range> wide;
  for (const GpuBuffer::Range& range : ranges) {
    const std::size_t end = wide.empty() ? 0 : wide.back().offset + wide.back().size;
    if (!wide.empty() && (end + line - 1) / line * line == range.offset)
      wide.back().size = range.offset + range.size - wide.back().offset;
    else
      wide.push_back(range);
  }
  return wide;
}

}  // namespace

std::vector<GpuBuffer::Range> ranges_of(const Layout& layout, const std::vector<PartitionId>& parts,
                                        std::size_t width) {
  std::vector<GpuBuffer::Range> ranges;
  for (const PartitionId p : parts) {
    const Layout::Part& part = layout.parts()[p.value()];
    ranges.push_back({part.begin * width, part.elements * width});
  }
  return joined(std::move(ranges), 1);
}

std::vector<GpuBuffer::Range> ranges_of(const std::vector<Place>& places,
                                        const std::vector<PartitionId>& parts) {
  std::vector<GpuBuffer::Range> ranges;
  for (const PartitionId p : parts)
    ranges.push_back({places[p.value()].offset, places[p.value()].bytes});
  return joined(std::move(ranges), Place::kLine);
}

Result<std::unique_ptr<DeviceGradients>> DeviceGradients::make(kernels::Backend& backend,
                                                               std::shared_ptr<transport::Gpu> gpu,
                                                               GpuBuffer& buffer,
                                                               const Layout& layout,
                                                               const GradientCodec& codec) {
  auto seen =
      transport::HostMemory::make(sizeof(std::int32_t), transport::HostMemory::Kind::kPrivate);
  if (!seen) return tl::unexpected(std::move(seen).error());
  std::unique_ptr<DeviceGradients> made(
      new DeviceGradients(backend, std::move(gpu), buffer, layout, codec, std::move(*seen)));
  auto pinned = made->gpu_->pin(made->seen_.bytes());
  if (!pinned) return tl::unexpected(std::move(pinned).error());
  made->pinned_ = std::move(*pinned);
  if (codec.codec != Codec::kTopK) return made;
  try {
    made->top_k_.emplace(backend, layout, codec, buffer.device(), made->places_,
                         made->not_finite_.as<std::int32_t>());
  } catch (const std::exception& error) {
    return fail(Code::kResourceExhausted,
                fmt::format("gradient_codec = topk keeps 8 bytes a parameter on {}, here {} "
                            "bytes: {}; choose another codec",
                            backend.name(), layout.elements() * 2 * sizeof(float), error.what()));
  }
  return made;
}

void DeviceGradients::begin_step(float loss_scale) {
  if (top_k_) top_k_->begin_step(loss_scale);
  backend_.fill_zero(not_finite_.as<std::int32_t>(), sizeof(std::int32_t));
}

bool DeviceGradients::encode(const Layout::Tensor& tensor, std::span<const float> gradient,
                             float factor) {
  if (top_k_) {
    top_k_->encode(tensor, gradient, factor);
    return true;
  }
  pieces_.clear();
  for (const PartitionId id : tensor.parts) {
    const Layout::Part& part = layout_.parts()[id.value()];
    const auto [begin, end] = shared_by(part, tensor);
    pieces_.push_back({.in = gradient.data() + (begin - tensor.begin),
                       .count = end - begin,
                       .payload = buffer_.device() + places_[id.value()].offset,
                       .elements = part.elements,
                       .at = begin - part.begin});
  }
  backend_.encode(codec_, pieces_, factor, not_finite_.as<std::int32_t>());
  return true;
}

void DeviceGradients::end_step(bool committed, float factor) {
  if (top_k_) top_k_->end_step(committed, factor);
}

std::span<const float> DeviceGradients::add_up(std::size_t parameter,
                                               std::span<const float> gradient, bool first) {
  if (sums_.bytes() == 0) sums_ = backend_.allocate(layout_.elements() * sizeof(float));
  float* const sum = sums_.as<float>(layout_.tensors()[parameter].begin);
  if (first) backend_.fill_zero(sum, gradient.size_bytes());
  // x + -0 is x, whatever its sign: the first one's bits are its own, as in a copy.
  backend_.weighted_sum(static_cast<std::int64_t>(gradient.size()), first ? -1.0f : 1.0f, sum, 1.0f,
                        gradient.data(), sum);
  return {sum, gradient.size()};
}

void DeviceGradients::poison() {
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
  return buffer_.publish(ranges_of(places_, parts), [this, send = std::move(send)] {
    if (finite()) send();
  });
}

Result<bool> DeviceGradients::finish() {
  if (auto s = look(); !s) return tl::unexpected(std::move(s).error());
  if (auto s = gpu_->synchronize(); !s) return tl::unexpected(std::move(s).error());
  return finite();
}

}  // namespace leeway::worker
