// What the threads of a session tell each other: the endpoint's thread and the control thread pin
// news here, the program's thread waits for them.
//
// Called from any thread; every public field is guarded by `mutex`, and whoever changes one
// notifies `changed`. Lives as long as the session.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/monotonic.h"
#include "scheduler_types.h"  // generated

namespace leeway::worker {

// The histogram's last bucket holds everything at or beyond it: with no bound, staleness has none.
inline constexpr std::size_t kStalenessBuckets = 1024;

struct Board {
  std::mutex mutex;
  std::condition_variable changed;

  // From the scheduler. `view` is empty (epoch -1) until the first answer.
  rpc::View view;

  // From the servers.
  std::optional<Clock> weights;          // the step for which weights are in the buffer
  bool final_weights = false;            // pull_final() was answered
  std::vector<Version> versions;         // of them, by partition
  std::vector<std::uint64_t> staleness;  // observed, by server
  std::uint32_t bound = 0;               // by which they were given
  Clock confirmed;                       // steps whose ending every server confirmed
  bool initial_confirmed = true;         // false from push to confirmation of the initial values
  std::size_t payloads_taken = 0;        // since the start

  // Why the session cannot go on. The first cause stays.
  struct Failure {
    std::string text;
    bool told = false;  // the scheduler knows, or need not be told
  };
  std::optional<Failure> failure;
  // A server does not answer on the fabric. The scheduler may know the cause: it has until then.
  struct Suspicion {
    std::string text;
    TimePoint until;
  };
  std::optional<Suspicion> suspicion;
  bool finishing = false;  // finish() was sent: news no longer matter

  rpc::WorkerReport report;

  // The program keeps a residual, which is to be saved at the clock of a checkpoint's cut.
  bool keeps_residual = false;
  bool in_step = false;

  Board();
  void fail(std::string text, bool told);                 // takes the mutex
  void suspect(std::string text, milliseconds patience);  // takes the mutex
  // A checkpoint wants worker `id` to stand still before its next step.
  bool pausing(std::int32_t id) const;
  // The checkpoint for which it does, everything done; "" without one.
  std::string paused(std::int32_t id) const;
  bool stopping() const {
    return view.phase == rpc::Phase::STOPPING || view.phase == rpc::Phase::DONE;
  }
};

}  // namespace leeway::worker
