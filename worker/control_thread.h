// The thread that talks to the scheduler while the program computes: heartbeat with the report,
// news onto the board, and the session's failure to the scheduler.
//
// Constructed and destroyed on the program's thread; the board outlives it. The destructor joins
// it, within one call's timeout.
#pragma once

#include <memory>
#include <stop_token>
#include <string>
#include <thread>

#include "common/monotonic.h"
#include "worker/board.h"
#include "worker/control_plane.h"

namespace leeway::worker {

class ControlThread {
 public:
  struct Config {
    rpc::Caller who;
    std::string scheduler;  // for messages
    milliseconds heartbeat{200};
    milliseconds silence{5000};  // a scheduler silent for so long ends the session
  };
  ControlThread(std::unique_ptr<ControlPlane> control, Config config, Board& board);

 private:
  void run(const std::stop_token& stop);
  bool beat();  // one watch and what follows from it; false ends the thread
  void take(rpc::View view);
  void check_suspicion();
  void tell_failure();

  const Config config_;
  Board& board_;
  const std::unique_ptr<ControlPlane> control_;
  std::optional<TimePoint> silent_since_;
  std::jthread thread_;
};

}  // namespace leeway::worker
