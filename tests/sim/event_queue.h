// Virtual time in milliseconds: events run in order of their time, which a seeded generator draws.
// One thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <utility>

#include "common/monotonic.h"

namespace leeway::sim {

class EventQueue {
 public:
  explicit EventQueue(std::uint64_t seed) : random_(seed) {}

  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
  bool chance(double p) { return static_cast<double>(random_() >> 11) * 0x1p-53 < p; }

  // At some moment within `span` from now: two events of one span come in any order.
  void soon(std::uint64_t span, std::function<void()> event) {
    events_.emplace(std::pair{time_ + 1 + below(span), sequence_++}, std::move(event));
  }
  void at(TimePoint when, std::function<void()> event) {
    const auto time = static_cast<std::uint64_t>(
        std::chrono::ceil<milliseconds>(when.time_since_epoch()).count());
    events_.emplace(std::pair{std::max(time, time_ + 1), sequence_++}, std::move(event));
  }
  // What was to come will not.
  void forget() { events_.clear(); }
  bool run_one() {
    if (events_.empty()) return false;
    auto node = events_.extract(events_.begin());
    time_ = node.key().first;
    node.mapped()();
    return true;
  }
  TimePoint now() const { return TimePoint(milliseconds(time_)); }

 private:
  std::mt19937_64 random_;
  std::uint64_t time_ = 0, sequence_ = 0;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::function<void()>> events_;
};

}  // namespace leeway::sim
