// Talks to the scheduler on a thread of its own, so that supervision never waits for a call: asks
// for the status at an interval and at once when wanted, and passes on what is to be told. News are
// announced on a descriptor.
//
// All functions are called from the thread that made it.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "scheduler/launcher/child_process.h"
#include "scheduler/launcher/member.h"
#include "scheduler/launcher/snapshot.h"

namespace leeway::scheduler {
class Client;
}

namespace leeway::launcher {

class StatusPoller {
 public:
  StatusPoller(std::string address, std::string token, milliseconds interval);
  ~StatusPoller();  // waits for the call in progress, a second at most

  void ask();  // a status now
  void set_interval(milliseconds interval);
  void lost(const Member& member, const std::string& why, bool fails_job);
  void stop(const std::string& reason);

  int descriptor() const noexcept { return event_.get(); }
  // Statuses since the last call, oldest first; clears the descriptor.
  std::vector<JobSnapshot> take();

 private:
  using Call = std::function<void(scheduler::Client&)>;
  void run(const std::stop_token& stop, const std::string& address);
  void enqueue(Call call);
  void poll_status(scheduler::Client& client);

  const std::string token_;
  Fd event_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::deque<Call> calls_;            // guarded by mutex_
  bool asked_ = true;                 // guarded by mutex_
  milliseconds interval_;             // guarded by mutex_
  std::vector<JobSnapshot> arrived_;  // guarded by mutex_
  bool first_ = true;                 // the thread's own: no status was had yet
  std::jthread thread_;
};

}  // namespace leeway::launcher
