// How an endpoint's thread waits when there is nothing to do.
//
// A thread that spins steals the core of the one that copies (several processes share a machine's
// cores), a thread that sleeps too early adds a wake-up to each message. So: yield for a moment
// after the last activity, then sleep in poll() on the rails' descriptors. While one of them has
// none, sleeps are short and grow to kLongestNap, an idle core's cost of a percent or so.
//
// wake() from any thread, the rest from the owner. The rails outlive it.
#pragma once

#include <poll.h>

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "common/monotonic.h"
#include "transport/rail.h"
#include "transport/task_queue.h"

namespace leeway::transport {

class Waiter {
 public:
  // Throws ConfigError.
  explicit Waiter(std::span<const std::unique_ptr<Rail>> rails);
  ~Waiter();
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  // Ends a sleep, if there is one. The caller has made its work visible in `tasks` before.
  void wake() noexcept;
  // Something was done: yield again before sleeping.
  void active(TimePoint now) noexcept;
  // Returns when a rail, a task or `until` may need attention, or somewhat earlier.
  void wait(TimePoint now, TimePoint until, const TaskQueue& tasks) noexcept;

 private:
  void sleep(Duration longest) noexcept;

  const std::span<const std::unique_ptr<Rail>> rails_;
  bool naps_ = false;  // a rail has no descriptor
  std::vector<pollfd> descriptors_;
  int wake_fd_ = -1;
  TimePoint last_active_{};
  std::atomic<bool> asleep_{false};
};

}  // namespace leeway::transport
