// Element types and shapes. Sizes are 64-bit everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace leeway {

enum class Dtype : std::uint8_t { kF32 = 1, kF16 = 2, kBf16 = 3 };

constexpr std::size_t size_of(Dtype dtype) noexcept { return dtype == Dtype::kF32 ? 4 : 2; }

constexpr std::string_view to_string(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::kF32:
      return "f32";
    case Dtype::kF16:
      return "f16";
    case Dtype::kBf16:
      return "bf16";
  }
  return "?";
}

constexpr std::optional<Dtype> parse_dtype(std::string_view text) noexcept {
  for (Dtype d : {Dtype::kF32, Dtype::kF16, Dtype::kBf16})
    if (text == to_string(d)) return d;
  return std::nullopt;
}

using Shape = std::vector<std::int64_t>;  // () is a scalar, a 0 anywhere makes an empty tensor

// Nothing when a dimension is negative or the product overflows.
constexpr std::optional<std::uint64_t> element_count(const Shape& shape) noexcept {
  std::uint64_t count = 1;
  for (std::int64_t dimension : shape) {
    if (dimension < 0) return std::nullopt;
    if (__builtin_mul_overflow(count, static_cast<std::uint64_t>(dimension), &count))
      return std::nullopt;
  }
  return count;
}

inline std::string to_string(const Shape& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

}  // namespace leeway
