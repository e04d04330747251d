// How an endpoint's thread waits when there is nothing to do.
//
// A thread that spins steals the core of the one that copies (several processes share a machine's
// cores), a thread that sleeps too early adds a wake-up to each message. So: yield for a moment
// after the last activity, then sleep in poll(). Where the completion queue has a descriptor,
// poll() sees it; where it has none, sleeps are short and grow to kLongestNap, an idle core's cost
// of a percent or so.
//
// wake() from any thread, the rest from the owner.
#pragma once

#include <atomic>

#include "common/monotonic.h"
#include "transport/fabric_handles.h"
#include "transport/providers.h"
#include "transport/task_queue.h"

namespace leeway::transport {

class Waiter {
 public:
  // Throws ConfigError. `queue` was opened with FI_WAIT_FD for Waiting::kDescriptor.
  Waiter(Waiting how, fid_fabric* fabric, fid_cq* queue);
  ~Waiter();
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  // Ends a sleep, if there is one. The caller has made its work visible in `tasks` before.
  void wake() noexcept;
  // Something was done: yield again before sleeping.
  void active(TimePoint now) noexcept;
  // Returns when the queue, a task or `until` may need attention, or somewhat earlier.
  void wait(TimePoint now, TimePoint until, const TaskQueue& tasks) noexcept;

 private:
  void sleep(Duration longest) noexcept;

  const Waiting how_;
  fid_fabric* const fabric_;
  fid_cq* const queue_;
  int queue_fd_ = -1;
  int wake_fd_ = -1;
  TimePoint last_active_{};
  std::atomic<bool> asleep_{false};
};

}  // namespace leeway::transport
