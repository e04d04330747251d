// Random numbers that are the same on every machine, for every compiler and every number of
// workers: the order of the data and the first weights are functions of the job's seed and of names
// alone. (The distributions of <random> may differ between standard libraries.)
//
//   generator: SplitMix64 (Steele, Lea, Flood 2014), state += 0x9E3779B97F4A7C15, then mix()
//   below(n):  Lemire 2019, multiply and reject, so no value is likelier than another
//   normal():  Box and Muller 1958 in FP64, one value from two draws
//
// Plain values, not shared between threads.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <string_view>

namespace leeway::worker {

// A bijection of 64 bits in which each input bit moves every output bit (SplitMix64's finisher).
constexpr std::uint64_t mix(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// One seed out of a seed and what it is for: a number (an epoch) or a name (a tensor).
constexpr std::uint64_t derive_seed(std::uint64_t seed, std::uint64_t purpose) noexcept {
  return mix(mix(seed + 0x9E3779B97F4A7C15u) ^ purpose);
}
constexpr std::uint64_t derive_seed(std::uint64_t seed, std::string_view purpose) noexcept {
  std::uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a, 64 bit
  for (char c : purpose) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return derive_seed(seed, hash);
}

class Random {
 public:
  explicit constexpr Random(std::uint64_t seed) noexcept : state_(seed) {}

  constexpr std::uint64_t next() noexcept { return mix(state_ += 0x9E3779B97F4A7C15u); }

  // Uniform in [0, n); n > 0.
  constexpr std::uint64_t below(std::uint64_t n) noexcept {
    using Wide = unsigned __int128;
    Wide product = Wide{next()} * n;
    if (static_cast<std::uint64_t>(product) < n) {
      const std::uint64_t threshold = (0 - n) % n;
      while (static_cast<std::uint64_t>(product) < threshold) product = Wide{next()} * n;
    }
    return static_cast<std::uint64_t>(product >> 64);
  }

  // Uniform in (0, 1], so that its logarithm is finite.
  constexpr double unit() noexcept { return static_cast<double>((next() >> 11) + 1) * 0x1p-53; }

  double normal() noexcept {
    const double radius = std::sqrt(-2.0 * std::log(unit()));
    return radius * std::cos(2.0 * std::numbers::pi * unit());
  }

 private:
  std::uint64_t state_;
};

}  // namespace leeway::worker
