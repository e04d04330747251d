// The only clock of the protocol: monotonic, so that nobody is evicted when the wall clock jumps.
#pragma once

#include <chrono>

namespace leeway {

using MonotonicClock = std::chrono::steady_clock;
using TimePoint = MonotonicClock::time_point;
using Duration = MonotonicClock::duration;
using std::chrono::milliseconds;

inline double seconds_between(TimePoint from, TimePoint to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace leeway
