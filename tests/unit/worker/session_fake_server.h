// A server in this process: a real endpoint that reads pushes, keeps FP32 weights (w -= the step's
// gradient times its factor), and answers pulls at once unless a test withholds them.
//
// Public methods from the test's thread; the rest on the endpoint's. Outlives the sessions: opening
// an endpoint is slow, so one server serves many tests, each after a restart().
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/tensor.h"
#include "transport/endpoint.h"
#include "transport/messages.h"

namespace leeway::worker::testing {

class FakeServer {
 public:
  explicit FakeServer(std::uint32_t id);
  // As new. `initialized`: it has weights already, all of them empty.
  void restart(Dtype pull_dtype, bool initialized);

  const transport::EndpointInfo& info() const { return endpoint_->info(); }
  // The worker's address, which a real server learns from the view.
  void meet(std::string address);

  // What waits meanwhile is answered when a test lets it.
  void withhold_pulls(bool withhold);
  void withhold_taken(bool withhold);
  void lag(std::uint64_t clocks);  // PULLED.slowest is so far behind from now on
  void refuse(std::string text);   // the next ending
  // An update of this partition alone.
  void change(PartitionId partition, float add);

  struct Ended {
    transport::Commit commit;
    std::size_t payloads = 0;  // taken before it since the ending before
  };
  // Each waits, with a deadline, until there are so many; false when that passed.
  bool has_endings(std::size_t count) const;
  bool has_payloads(std::size_t count) const;
  bool has_pulls(std::size_t count) const;
  std::vector<Ended> endings() const;
  std::map<PartitionId, std::vector<float>> masters() const;
  std::size_t checksums() const;             // payloads that came with one
  std::optional<std::string> error() const;  // what a right session never causes

 private:
  void on_message(std::span<const std::byte> bytes);
  void take_message(const transport::Message& message);
  void read(const transport::Push& push, const transport::Push::Entry& entry);
  void take(const transport::Push& push, const transport::Push::Entry& entry,
            std::span<const std::byte> payload);
  void end(const transport::Commit& commit);
  void answer_waiting();
  void answer(const transport::Pull& pull);
  void reply(const transport::Body& body);
  void wrong(std::string text);
  template <typename Ready>
  bool wait(Ready ready) const;
  void on_thread(transport::Task task);

  // What a restart puts back.
  struct State {
    Dtype pull_dtype = Dtype::kF32;
    std::optional<transport::Peer> worker;
    std::map<PartitionId, std::vector<float>> staged;
    std::map<PartitionId, Version> versions;
    std::vector<transport::Pull> pulls;
    std::vector<transport::PushTaken> untold;
    bool initialized = false;
    bool pulls_withheld = false, taken_withheld = false;
    std::uint64_t lag = 0;
    std::optional<std::string> refusal;
    std::map<PartitionId, std::vector<float>> masters;
    std::vector<Ended> endings;
    std::size_t payloads = 0, pulls_seen = 0, checksums = 0;
    std::optional<std::string> error;
  };

  const std::uint32_t id_;
  mutable std::mutex mutex_;  // guards `s_`
  mutable std::condition_variable changed_;
  State s_;
  std::unique_ptr<transport::Endpoint> endpoint_;
};

}  // namespace leeway::worker::testing
