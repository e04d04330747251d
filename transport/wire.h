// Little-endian, unpadded integers in a byte string: what messages.cc is written with.
//
// Writer appends to a vector. Reader never reads beyond its span: past the end it returns zeros and
// ok() turns false, so a decoder reads a whole fixed part and asks once. Plain values, one thread.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace leeway::transport::wire {

class Writer {
 public:
  explicit Writer(std::size_t capacity) { bytes_.reserve(capacity); }

  template <std::unsigned_integral T>
  void put(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i)
      bytes_.push_back(static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i)));
  }
  void put(float value) { put(std::bit_cast<std::uint32_t>(value)); }
  void put(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }

  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <typename T>
  T get() {
    if constexpr (std::same_as<T, float>) {
      return std::bit_cast<float>(get<std::uint32_t>());
    } else {
      const auto raw = take(sizeof(T));
      std::uint64_t value = 0;
      for (std::size_t i = 0; i < raw.size(); ++i)
        value |= static_cast<std::uint64_t>(raw[i]) << (8 * i);
      return static_cast<T>(value);
    }
  }
  // Nothing, and not ok(), when fewer than `size` are left.
  std::span<const std::byte> take(std::size_t size) {
    if (size > rest_.size()) {
      ok_ = false;
      rest_ = {};
      return {};
    }
    const auto front = rest_.first(size);
    rest_ = rest_.subspan(size);
    return front;
  }
  bool ok() const noexcept { return ok_; }
  std::size_t left() const noexcept { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

}  // namespace leeway::transport::wire
