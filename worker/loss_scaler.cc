#include "worker/loss_scaler.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

namespace leeway::worker {
namespace {

constexpr std::size_t kStateBytes = 12;

void put(std::vector<std::byte>& out, std::uint64_t value, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) out.push_back(static_cast<std::byte>(value >> (8 * i)));
}

std::uint64_t take(std::span<const std::byte> in, std::size_t offset, std::size_t bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes; ++i)
    value |= std::to_integer<std::uint64_t>(in[offset + i]) << (8 * i);
  return value;
}

}  // namespace

LossScaler::LossScaler(const Limits& limits) : limits_(limits), scale_(limits.initial) {}

Status LossScaler::finished(bool finite) {
  if (finite) {
    if (++finite_in_a_row_ < limits_.growth_interval) return {};
    finite_in_a_row_ = 0;
    scale_ = std::min(scale_ * 2, limits_.max);
    return {};
  }
  finite_in_a_row_ = 0;
  if (scale_ <= limits_.min)
    return fail(Code::kInvalidArgument,
                fmt::format("the loss scale is at its minimum ({}) and gradients are still not "
                            "finite: lower the learning rate, or look for a NaN in the data or "
                            "the loss",
                            limits_.min));
  scale_ = std::max(scale_ / 2, limits_.min);
  return {};
}

std::vector<std::byte> LossScaler::save() const {
  std::vector<std::byte> state;
  state.reserve(kStateBytes);
  put(state, std::bit_cast<std::uint64_t>(scale_), 8);
  put(state, finite_in_a_row_, 4);
  return state;
}

Status LossScaler::restore(std::span<const std::byte> state) {
  const auto damaged = [] {
    return fail(Code::kDataLoss,
                "the worker state in the checkpoint is damaged or of another version of Leeway: "
                "resume from an older checkpoint, or start with --resume never");
  };
  if (state.size() != kStateBytes) return damaged();
  const double scale = std::bit_cast<double>(take(state, 0, 8));
  if (!std::isfinite(scale) || scale <= 0) return damaged();
  scale_ = std::clamp(scale, limits_.min, limits_.max);
  finite_in_a_row_ = static_cast<std::uint32_t>(take(state, 8, 4));
  return {};
}

}  // namespace leeway::worker
