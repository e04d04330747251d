// Sums of squares of FP32 numbers whose bits do not depend on the order of adding: the same for
// every number of threads, partitions and servers. Plain values.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace leeway {

// A fixed-point number of 640 bits. Its unit is 2^-298, the square of the smallest FP32 number, so
// that every double which was summed from such squares is a multiple of it; 2^342 is beyond what
// 2^64 of the largest ones make. Negative, infinite or NaN terms, and what is beyond, saturate it.
class ExactSum {
 public:
  static constexpr std::size_t kWords = 10;
  using Words = std::array<std::uint64_t, kWords>;  // the lowest first

  ExactSum() = default;
  explicit ExactSum(const Words& words) : words_(words) {}
  const Words& words() const noexcept { return words_; }

  void add(double term) {
    const auto bits = std::bit_cast<std::uint64_t>(term);
    if (bits == 0) return;
    const auto exponent = static_cast<int>(bits >> 52);  // with the sign: larger than any other
    int shift = exponent - kBias;                        // of the mantissa, in units
    if (exponent == 0 || shift < -52) return;            // below half a unit
    if (shift >= static_cast<int>(64 * (kWords - 1))) return saturate();
    std::uint64_t mantissa = (bits & ((1ull << 52) - 1)) | 1ull << 52;
    if (shift < 0) {
      mantissa >>= -shift;
      shift = 0;
    }
    const auto word = static_cast<std::size_t>(shift) / 64;
    const int bit = shift % 64;
    bool carry = add_at(word, mantissa << bit, false);
    carry = add_at(word + 1, bit == 0 ? 0 : mantissa >> (64 - bit), carry);
    for (std::size_t i = word + 2; carry && i < kWords; ++i) carry = add_at(i, 0, true);
    if (carry) saturate();
  }

  void add(const ExactSum& other) {
    const bool either = saturated() || other.saturated();
    bool carry = false;
    for (std::size_t i = 0; i < kWords; ++i) carry = add_at(i, other.words_[i], carry);
    if (carry || either) saturate();
  }

  // Within 2^-52 of the sum, relatively; infinite when saturated.
  double value() const {
    if (saturated()) return std::numeric_limits<double>::infinity();
    std::size_t top = kWords - 1;
    while (top > 0 && words_[top] == 0) --top;
    const double low = top == 0 ? 0 : static_cast<double>(words_[top - 1]) * 0x1p-64;
    return std::ldexp(static_cast<double>(words_[top]) + low, static_cast<int>(64 * top) - kUnit);
  }

  friend bool operator==(const ExactSum&, const ExactSum&) = default;

 private:
  static constexpr int kUnit = 298;
  static constexpr int kBias = 1075 - kUnit;  // a double is its mantissa times 2^(exponent - 1075)

  bool add_at(std::size_t i, std::uint64_t term, bool carry) {
    const bool over = __builtin_add_overflow(words_[i], term, &words_[i]);
    return __builtin_add_overflow(words_[i], std::uint64_t{carry}, &words_[i]) || over;
  }
  bool saturated() const {
    for (const std::uint64_t word : words_)
      if (word != UINT64_MAX) return false;
    return true;
  }
  void saturate() { words_.fill(UINT64_MAX); }

  Words words_{};
};

// Of the squares of a tensor's weights, and of what lamb would subtract from them at a trust ratio
// of 1 (kernels/lamb.h); or of a part of a tensor.
struct NormSums {
  ExactSum weights, changes;
  void add(const NormSums& other) {
    weights.add(other.weights);
    changes.add(other.changes);
  }
  friend bool operator==(const NormSums&, const NormSums&) = default;
};

}  // namespace leeway
