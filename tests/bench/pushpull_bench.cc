#include "tests/bench/pushpull_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "common/result.h"
#include "tests/bench/child_process.h"
#include "tests/bench/peer_process.h"
#include "tests/bench/raw_fabric.h"
#include "tests/bench/summary.h"

namespace leeway::bench {
namespace {

using Member = std::unique_ptr<ChildProcess>;

constexpr int kSteps = 4;  // in a round, of each worker
constexpr std::size_t kLeastRawMemory = std::size_t{8} << 20;
constexpr std::size_t kRawBytes = std::size_t{128} << 20;
constexpr std::size_t kRawDepth = 4;
constexpr std::chrono::seconds kRoundDeadline{300};
constexpr milliseconds kLookAtServers{200};
constexpr const char* kKinds[] = {"push", "pull", "both"};

std::vector<Member> start(const char* role, std::uint32_t count, const std::string& fabric) {
  std::vector<Member> members;
  for (std::uint32_t i = 0; i < count; ++i)
    members.push_back(std::make_unique<ChildProcess>(
        fmt::format("{}.{}", role, i),
        std::vector<std::string>{fmt::format("pushpull-{}", role), "--index", std::to_string(i),
                                 "--fabric", fabric}));
  return members;
}

nlohmann::json addresses(const std::vector<Member>& members) {
  nlohmann::json list = nlohmann::json::array();
  for (const Member& member : members) list.push_back(member->receive().at("address"));
  return list;
}

// A small job without a scheduler.
class Job {
 public:
  Job(const PushPullOptions& options, PushPullOptions::Size size)
      : servers_(start("server", size.servers, options.fabric)),
        workers_(start("worker", size.workers, options.fabric)) {
    nlohmann::json plan = {{"elements", (options.model_mib << 20) / sizeof(float)},
                           {"partition_elements", (options.partition_mib << 20) / sizeof(float)}};
    plan["servers"] = addresses(servers_);
    plan["workers"] = addresses(workers_);
    for (const auto* members : {&servers_, &workers_}) {
      for (const Member& member : *members) member->send(plan);
      for (const Member& member : *members) member->receive();
    }
    workers_.front()->send({{"do", "initial"}});
    answer(*workers_.front());
  }

  // GB/s of all workers together.
  double round(const std::string& kind) {
    order({{"do", kind}, {"steps", kSteps}});
    std::int64_t begin = INT64_MAX, end = 0;
    double bytes = 0;
    for (const Member& worker : workers_) {
      const nlohmann::json moved = answer(*worker);
      begin = std::min(begin, moved.at("begin").get<std::int64_t>());
      end = std::max(end, moved.at("end").get<std::int64_t>());
      bytes += moved.at("bytes").get<double>();
    }
    if (kind != "pull") steps_ += kSteps * workers_.size();
    order({{"do", "check"}, {"steps", steps_}});
    for (const Member& worker : workers_) answer(*worker);
    return bytes / static_cast<double>(end - begin);
  }

 private:
  void order(const nlohmann::json& what) {
    for (const Member& worker : workers_) worker->send(what);
  }

  // A server that dies is named as the cause, not the worker that waits for it.
  nlohmann::json answer(ChildProcess& worker) {
    const TimePoint until = MonotonicClock::now() + kRoundDeadline;
    while (!worker.ready(kLookAtServers) && MonotonicClock::now() < until)
      for (const Member& server : servers_)
        if (server->ready(milliseconds(0))) server->receive();
    return worker.receive();
  }

  std::vector<Member> servers_, workers_;  // workers end first
  std::uint64_t steps_ = 0;
};

// GB/s of the fastest way that the provider has for bytes between two processes.
double best_raw(PeerProcess& peer, RawFabric& raw) {
  double best = 0;
  peer.spin_raw(true);
  for (const Move move : {Move::kRead, Move::kWrite})
    for (const std::size_t size : {std::size_t{1} << 20, std::size_t{4} << 20})
      best = std::max(best, static_cast<double>(kRawBytes) / 1e9 /
                                raw.transfer(move, size, kRawBytes / size, kRawDepth));
  peer.spin_raw(false);
  return best;
}

void run_size(const PushPullOptions& options, PushPullOptions::Size size,
              std::vector<Case>& cases) {
  // As much as a worker's gradients, so that the processor's caches help both alike.
  const std::size_t raw_memory = std::max(kLeastRawMemory, (options.model_mib << 20) / 2);
  PeerProcess peer(options.fabric, raw_memory);
  Job job(options, size);
  // Last: no process starts while this one has a fabric open.
  RawFabric raw(options.fabric, raw_memory);
  raw.connect(peer.raw().address, peer.raw().memory);
  std::vector<Rounds> rounds(std::size(kKinds));
  // The first round warms connections and pages, and counts for nothing.
  for (int round = -1; round < options.rounds; ++round) {
    for (std::size_t i = 0; i < std::size(kKinds); ++i) {
      // In turn, so that a machine that slows down or speeds up favours neither.
      const double before = round % 2 == 0 ? 0 : best_raw(peer, raw);
      const double ours = job.round(kKinds[i]);
      const double limit = round % 2 == 0 ? best_raw(peer, raw) : before;
      if (round >= 0) rounds[i].add(ours, limit);
    }
  }
  for (std::size_t i = 0; i < std::size(kKinds); ++i)
    cases.push_back(
        rounds[i].summary(fmt::format("{} {} server{} {} worker{} {}", options.fabric, size.servers,
                                      size.servers == 1 ? "" : "s", size.workers,
                                      size.workers == 1 ? "" : "s", kKinds[i]),
                          "GB/s"));
}

}  // namespace

std::vector<Case> run_pushpull(const PushPullOptions& options) {
  if (options.partition_mib > options.model_mib)
    throw ConfigError(fmt::format("--partition-mib {} is more than --model-mib {}",
                                  options.partition_mib, options.model_mib));
  std::vector<Case> cases;
  for (const PushPullOptions::Size size : options.sizes) run_size(options, size, cases);
  return cases;
}

}  // namespace leeway::bench
