#include "tests/bench/pushpull_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/monotonic.h"

namespace leeway::bench {
namespace {

constexpr std::chrono::seconds kRoundDeadline{300};
constexpr milliseconds kLookAtServers{200};

template <typename Members>
nlohmann::json addresses(const Members& members) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& member : members) list.push_back(member->receive().at("address"));
  return list;
}

}  // namespace

std::vector<PushPullJob::Member> PushPullJob::start(const char* role, std::uint32_t count,
                                                    const std::string& fabric) {
  std::vector<Member> members;
  for (std::uint32_t i = 0; i < count; ++i)
    members.push_back(std::make_unique<ChildProcess>(
        fmt::format("{}.{}", role, i),
        std::vector<std::string>{fmt::format("pushpull-{}", role), "--index", std::to_string(i),
                                 "--fabric", fabric}));
  return members;
}

PushPullJob::PushPullJob(const Options& options)
    : servers_(start("server", options.servers, options.fabric)),
      workers_(start("worker", options.workers, options.fabric)) {
  nlohmann::json plan = {{"elements", options.elements},
                         {"tensors", options.tensors},
                         {"partition_elements", options.partition_elements},
                         {"step_core", options.step_core},
                         {"checksum", options.checksum},
                         {"optimizer", options.optimizer},
                         {"memory_limit", options.memory_limit},
                         {"threads", options.threads},
                         {"uniform", options.uniform}};
  plan["servers"] = addresses(servers_);
  plan["workers"] = addresses(workers_);
  for (const auto* members : {&servers_, &workers_}) {
    for (const Member& member : *members) member->send(plan);
    for (const Member& member : *members) member->receive();
  }
  workers_.front()->send({{"do", "initial"}});
  answer(*workers_.front());
}

std::vector<nlohmann::json> PushPullJob::order(const nlohmann::json& what) {
  for (const Member& worker : workers_) worker->send(what);
  std::vector<nlohmann::json> answers;
  for (const Member& worker : workers_) answers.push_back(answer(*worker));
  return answers;
}

void PushPullJob::tell(std::uint32_t worker, const nlohmann::json& what) {
  workers_[worker]->send(what);
}

nlohmann::json PushPullJob::answer_of(std::uint32_t worker) { return answer(*workers_[worker]); }

std::vector<nlohmann::json> PushPullJob::ask_servers(const nlohmann::json& what) {
  std::vector<nlohmann::json> answers;
  for (const Member& server : servers_) {
    server->send(what);
    answers.push_back(server->receive());
  }
  return answers;
}

double PushPullJob::round(const std::string& kind, int steps) {
  std::int64_t begin = INT64_MAX, end = 0;
  double bytes = 0;
  for (const nlohmann::json& moved : order({{"do", kind}, {"steps", steps}})) {
    begin = std::min(begin, moved.at("begin").get<std::int64_t>());
    end = std::max(end, moved.at("end").get<std::int64_t>());
    bytes += moved.at("bytes").get<double>();
  }
  if (kind != "pull") steps_ += static_cast<std::uint64_t>(steps) * workers_.size();
  order({{"do", "check"}, {"steps", steps_}});
  return bytes / static_cast<double>(end - begin);
}

std::vector<double> PushPullJob::processor_seconds() {
  std::vector<double> seconds;
  for (const auto* members : {&servers_, &workers_})
    for (const Member& member : *members) {
      member->send({{"do", "processor"}});
      seconds.push_back(member->receive().at("seconds"));
    }
  return seconds;
}

PushPullJob::Memory PushPullJob::server_memory() {
  Memory memory;
  for (const nlohmann::json& answer : ask_servers({{"do", "memory"}})) {
    memory.planned += answer.at("planned").get<double>();
    memory.resident += answer.at("resident").get<double>();
  }
  return memory;
}

// A server that dies is named as the cause, not the worker that waits for it.
nlohmann::json PushPullJob::answer(ChildProcess& worker) {
  const TimePoint until = MonotonicClock::now() + kRoundDeadline;
  while (!worker.ready(kLookAtServers) && MonotonicClock::now() < until)
    for (const Member& server : servers_)
      if (server->ready(milliseconds(0))) server->receive();
  return worker.receive();
}

}  // namespace leeway::bench
