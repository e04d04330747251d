// One JobCore, shared between threads: the mutex, the wake-ups of long polls, and the thread that
// ticks and carries out what the core decides. Knows nothing of Thrift.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "common/log.h"
#include "common/monotonic.h"
#include "scheduler/job_core.h"
#include "storage/checkpoint_store.h"

namespace leeway::scheduler {

class JobHost {
 public:
  JobHost(JobSetup setup, std::unique_ptr<storage::ManifestStore> store);
  ~JobHost();

  // Any thread. `use(core, now)` under the mutex; wakes whoever waits for what it changed.
  template <typename Use>
  auto with(Use use) {
    std::unique_lock lock(mutex_);
    auto result = use(core_, MonotonicClock::now());
    settle(lock);
    return result;
  }

  // Waits until `ready(core)`, but no longer than `wait` nor than this lives; then `use(core)`.
  template <typename Ready, typename Use>
  auto wait_then(milliseconds wait, Ready ready, Use use) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, MonotonicClock::now() + wait,
                        [&] { return closing_ || ready(core_); });
    return use(core_);
  }

  // Stops the job, gracefully; when it is over already, releases it.
  void stop(const std::string& reason);
  // From now on nobody waits.
  void close();
  // The job is over and nobody needs this process any more.
  void release();
  rpc::Phase::type wait_over(milliseconds linger);

 private:
  // Hands the core's effects on and unlocks.
  void settle(std::unique_lock<std::mutex>& lock);
  void run(const std::stop_token& stop);
  void carry_out(Effects work);

  std::mutex mutex_;
  std::condition_variable changed_;
  JobCore core_;                                   // guarded by mutex_
  Effects work_;                                   // guarded by mutex_: commits and deletions to do
  bool closing_ = false;                           // guarded by mutex_
  bool released_ = false;                          // guarded by mutex_
  std::unique_ptr<storage::ManifestStore> store_;  // the ticker's alone
  std::jthread ticker_;
};

}  // namespace leeway::scheduler
