// A metric that many threads add to and one reads now and then.
#pragma once

#include <atomic>
#include <cstdint>

namespace leeway {

// Called from any thread. On a cache line of its own, so that two counters never contend.
class alignas(64) MetricCounter {
 public:
  void add(std::uint64_t n) noexcept { value_.fetch_add(n, std::memory_order_relaxed); }
  std::uint64_t read() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

}  // namespace leeway
