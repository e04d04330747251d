// The program's thread's line to the scheduler: calls that are tried again as long as that helps,
// and the session's failure, which the scheduler is told before the program gets its exception.
//
// Called from the program's thread; the control thread has a line of its own. The board outlives
// it.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <type_traits>

#include "common/monotonic.h"
#include "common/result.h"
#include "worker/board.h"
#include "worker/control_plane.h"
#include "worker/session.h"

namespace leeway::worker {

class SchedulerLine {
 public:
  using Lock = std::unique_lock<std::mutex>;  // of the board

  SchedulerLine(std::unique_ptr<ControlPlane> control, const SessionOptions& options, Board& board);

  const std::string& who() const noexcept { return who_; }        // "worker.3"
  const rpc::Caller& caller() const noexcept { return caller_; }  // once joined

  // Each takes `patience` with a scheduler that does not answer; a refusal is final at once.
  rpc::Registration join(const rpc::RegisterRequest& request, milliseconds patience);
  void declare(const rpc::Model& model, milliseconds patience);
  rpc::Plan plan(milliseconds patience);
  void stop(const std::string& reason, milliseconds patience);
  void finish(const rpc::WorkerReport& report, milliseconds patience);

  // Throws when the session has failed.
  void check();
  // Fails it when the status is an error.
  void check(Status status);
  [[noreturn]] void fail_with(std::string text);
  [[noreturn]] void throw_failure(Lock& lock);
  // Tells the scheduler of the board's failure, unless it knows. Releases the lock.
  void tell(Lock& lock) noexcept;

 private:
  template <typename Call>
  std::invoke_result_t<Call> insist(milliseconds patience, Call call);

  const std::unique_ptr<ControlPlane> control_;
  std::string who_;
  const std::string scheduler_;
  Board& board_;
  rpc::Caller caller_;
};

}  // namespace leeway::worker
