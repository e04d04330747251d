// Counts that only grow, seen now and then, as a rate over the last seconds.
#pragma once

#include <deque>
#include <utility>

#include "common/monotonic.h"

namespace leeway::scheduler {

class RateMeter {
 public:
  void add(double count, TimePoint now) {
    if (!seen_.empty() && now - seen_.back().first < kSpacing) return;
    seen_.emplace_back(now, count);
    while (seen_.size() > 2 && now - seen_.front().first > kWindow) seen_.pop_front();
  }
  double per_second() const {
    if (seen_.size() < 2) return 0;
    const auto& [from, low] = seen_.front();
    const auto& [to, high] = seen_.back();
    return (high - low) / seconds_between(from, to);
  }

 private:
  static constexpr milliseconds kSpacing{250};
  static constexpr milliseconds kWindow{5000};
  std::deque<std::pair<TimePoint, double>> seen_;
};

}  // namespace leeway::scheduler
