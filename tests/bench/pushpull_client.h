// A worker's end of the wire protocol without a session: offers payloads, commits, pulls. It keeps
// the order that worker/step_core.h keeps, but can also do what no training does, pushes without
// pulls and pulls of what it has already.
//
// Used from one thread, like the program's; messages are handled on the endpoint's. Every wait has
// a deadline and throws std::runtime_error.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tests/bench/pushpull_plan.h"
#include "transport/endpoint.h"
#include "transport/messages.h"

namespace leeway::bench {

struct Moved {
  TimePoint begin, end;
  std::uint64_t bytes = 0;
};

class PushPullClient {
 public:
  // Gradients are filled in; the weights at the servers start at zero.
  PushPullClient(std::unique_ptr<transport::Endpoint> endpoint, PushPullPlan plan,
                 std::uint32_t rank);
  ~PushPullClient();

  void push_initial();
  // Steps without pulls; over when the servers have applied the last one.
  Moved push(int steps);
  // Everything, each time.
  Moved pull(int times);
  // Steps of which each begins when the one before is applied.
  Moved apply(int steps);
  // Steps as in training without computing: the weights after step c are on their way while the
  // gradients of step c + 1 are.
  Moved both(int steps);
  // Steps of gradients that go in the message with their COMMIT, one after the other, the next so
  // long after the answer to the last. Microseconds from sending to the answer, on the fabric
  // thread.
  std::vector<double> round_trips(std::size_t count, milliseconds pause);
  // Pulls into cleared memory and compares with the weights after so many steps of all workers.
  void check(std::uint64_t steps);
  // What the last pull brought: every partition is all one value, that of its version.
  void check_uniform();

 private:
  // With one server the COMMIT goes with the push.
  bool alone() const { return plan_.servers == 1; }
  void on_frame(std::span<const std::byte> frame);
  void take(const transport::Message& message);
  void send_round_trip();
  void end_round_trip();
  void send(std::uint32_t server, const transport::Body& body);
  template <typename Ready>
  void wait(const char* what, Ready ready);

  void fill_gradients();
  void start_push(bool initial);
  void start_ending(transport::Ending ending);
  void start_pull(bool everything, bool empty = false);
  void await_taken();
  void await_committed();
  void await_pulled();

  const PushPullPlan plan_;
  const transport::Sender self_;
  std::vector<std::vector<std::uint32_t>> shards_;  // partitions by server
  Clock clock_;                                     // steps committed
  std::uint32_t request_ = 0;

  // Endpoint's thread.
  std::vector<transport::Peer> peers_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::size_t taken_ = 0, committed_ = 0, pulled_ = 0;  // partitions, servers, servers
  std::vector<std::size_t> entries_;                    // of the pull, by server
  std::vector<Version> have_;
  std::uint64_t pulled_bytes_ = 0;
  bool everything_ = false;
  struct RoundTrips {
    std::size_t count = 0;
    milliseconds pause{};
    TimePoint sent;
    std::vector<double> microseconds;
  };
  std::optional<RoundTrips> round_trips_;  // while they run
  std::string failure_;

  // Memory goes before the endpoint. FP16 gradients, then FP16 weights; at the start FP32 values.
  std::unique_ptr<transport::Endpoint> endpoint_;
  transport::RegisteredMemory memory_;
};

}  // namespace leeway::bench
