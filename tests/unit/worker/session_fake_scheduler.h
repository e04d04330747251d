// A scheduler in this process: it keeps the last word of a session's control plane and answers with
// the view that a test sets. Called from any thread; outlives the sessions.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "transport/endpoint.h"
#include "worker/control_plane.h"

namespace leeway::worker::testing {

inline constexpr std::int64_t kJob = 0x1EE;
inline constexpr std::int64_t kServerIncarnation = 70;
inline constexpr std::chrono::seconds kDeadline{20};

class FakeScheduler {
 public:
  // Servers listen at these addresses.
  explicit FakeScheduler(std::vector<transport::EndpointInfo> servers);

  ControlPlaneFactory factory();

  // What joining and planning will say; set before the session joins.
  std::map<std::string, std::string> settings;
  std::size_t partition_elements = 4;
  std::optional<rpc::WorkerProgress> progress;                 // restored
  std::function<Status(const rpc::RegisterRequest&)> on_join;  // may refuse or fail
  std::string checkpoint_dir;
  std::string restore = "ckpt-1";
  bool initializer = true;                         // worker 0 gives initial values
  rpc::Phase::type planned = rpc::Phase::RUNNING;  // the phase then

  void set_phase(rpc::Phase::type phase, std::string reason);
  std::string reason();
  void lose_server(int id);
  void stop_answering(Error error);
  void order(rpc::CheckpointStage::type stage, const std::string& id,
             std::map<std::int32_t, std::int64_t> clocks = {});
  // Waits for a report like this, with a deadline.
  bool reported(const std::function<bool(const rpc::WorkerReport&)>& like);

  // What the session did; each waits until it happened, with a deadline.
  std::optional<std::string> fault();
  std::optional<rpc::WorkerReport> finished();
  std::optional<std::string> fault_so_far();
  rpc::WorkerReport last_report();

 private:
  friend class FakeControlPlane;
  void touch() { ++view_.epoch, changed_.notify_all(); }
  void make_plan(const rpc::Model& model);

  std::mutex mutex_;
  std::condition_variable changed_;
  rpc::View view_;
  rpc::Plan plan_;
  std::optional<Error> silence_;
  std::optional<std::string> fault_;
  std::optional<rpc::WorkerReport> finished_;
  rpc::WorkerReport report_;
};

}  // namespace leeway::worker::testing
