// What the programs at the two ends of a Link share: bytes in JSON, and telling the parent of an
// error.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <vector>

#include "tests/bench/child_process.h"

namespace leeway::bench {

// Once an order has begun to come, the rest follows at once.
inline constexpr std::chrono::seconds kOrderDeadline{60};

inline nlohmann::json to_json(const std::vector<std::byte>& bytes) {
  std::vector<std::uint8_t> copy(bytes.size());
  std::ranges::transform(bytes, copy.begin(), [](std::byte b) { return std::uint8_t(b); });
  return nlohmann::json::binary(std::move(copy));
}

inline std::vector<std::byte> bytes_of(const nlohmann::json& item) {
  const auto& bytes = item.get_binary();
  std::vector<std::byte> copy(bytes.size());
  std::ranges::transform(bytes, copy.begin(), [](std::uint8_t b) { return std::byte(b); });
  return copy;
}

// Runs a child's `work` and tells the parent why it ended early. Returns the exit code.
template <typename Work>
int guarded(Link& link, Work work) {
  try {
    work();
    return 0;
  } catch (const std::exception& error) {
    try {
      link.send({{"error", error.what()}});
    } catch (const std::exception&) {
      return 2;  // the parent is gone: nobody to tell
    }
    return 1;
  }
}

}  // namespace leeway::bench
