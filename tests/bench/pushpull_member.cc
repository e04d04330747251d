#include "tests/bench/pushpull_member.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "common/log.h"
#include "server/engine.h"
#include "tests/bench/child_json.h"
#include "tests/bench/pushpull_client.h"

namespace leeway::bench {
namespace {

constexpr std::uint32_t kPeers = 64;  // as servers and workers open theirs

std::vector<std::vector<std::byte>> addresses(const nlohmann::json& list) {
  std::vector<std::vector<std::byte>> all;
  for (const auto& item : list) all.push_back(bytes_of(item));
  return all;
}

PushPullPlan plan_of(const nlohmann::json& message) {
  return {.elements = message.at("elements"),
          .partition_elements = message.at("partition_elements"),
          .servers = static_cast<std::uint32_t>(message.at("servers").size()),
          .server_addresses = addresses(message.at("servers")),
          .worker_addresses = addresses(message.at("workers"))};
}

server::EngineConfig engine_config(const PushPullPlan& plan, std::uint32_t index) {
  server::EngineConfig config{.server = ServerId(index),
                              .incarnation = server_incarnation(index),
                              .job = kJob,
                              .servers = plan.servers,
                              .tensors = {{"w", {static_cast<std::int64_t>(plan.elements)}}},
                              .threads = std::max(1u, std::thread::hardware_concurrency())};
  config.settings.staleness.value = Bound::kInfinite;
  config.settings.optimizer.value = "sgd";
  config.settings.learning_rate = kLearningRate;
  for (std::size_t p = 0; p < plan.partitions(); ++p)
    if (plan.server_of(p) == index)
      config.partitions.push_back(
          {PartitionId(static_cast<std::uint32_t>(p)), 0, plan.begin(p), plan.length(p)});
  for (std::uint32_t w = 0; w < plan.worker_addresses.size(); ++w)
    config.workers[WorkerId(w)] = {worker_incarnation(w), Clock(0), {}};
  return config;
}

server::EngineView engine_view(const PushPullPlan& plan) {
  server::EngineView view{.epoch = 1, .initializer = WorkerId(0), .learning_rate = kLearningRate};
  for (std::uint32_t w = 0; w < plan.worker_addresses.size(); ++w)
    view.workers.push_back(
        {{WorkerId(w), worker_incarnation(w), server::WorkerPhase::kLive, Clock(0)},
         plan.worker_addresses[w]});
  return view;
}

nlohmann::json obey(PushPullClient& client, const nlohmann::json& order) {
  const std::string what = order.at("do");
  if (what == "initial") {
    client.push_initial();
    return {{"done", true}};
  }
  if (what == "check") {
    client.check(order.at("steps"));
    return {{"done", true}};
  }
  const int steps = order.at("steps");
  const Moved moved = what == "push"   ? client.push(steps)
                      : what == "pull" ? client.pull(steps)
                                       : client.both(steps);
  // Processes of one machine share this clock.
  const auto nanoseconds = [](TimePoint t) { return t.time_since_epoch().count(); };
  return {
      {"begin", nanoseconds(moved.begin)}, {"end", nanoseconds(moved.end)}, {"bytes", moved.bytes}};
}

}  // namespace

int serve_as_server(const std::string& fabric, std::uint32_t index) {
  Link link(adopt_socket());
  return guarded(link, [&] {
    log::start(fmt::format("server.{}", index), log::Level::kWarning);
    auto endpoint = transport::Endpoint::open({.fabric = fabric, .peers = kPeers});
    link.send({{"address", to_json(endpoint->info().address)}});
    const PushPullPlan plan = plan_of(link.receive(kOrderDeadline));
    server::Engine engine(std::move(endpoint), engine_config(plan, index));
    engine.view(engine_view(plan));
    // The report comes after the view: the engine has connected to the workers by then.
    const auto report = value_or_throw(engine.report());
    if (!report.fault.empty()) throw std::runtime_error(report.fault);
    link.send({{"ready", true}});
    while (link.wait()) link.receive(kOrderDeadline);
  });
}

int serve_as_worker(const std::string& fabric, std::uint32_t index) {
  Link link(adopt_socket());
  return guarded(link, [&] {
    log::start(fmt::format("worker.{}", index), log::Level::kWarning);
    auto endpoint = transport::Endpoint::open({.fabric = fabric, .peers = kPeers});
    link.send({{"address", to_json(endpoint->info().address)}});
    PushPullClient client(std::move(endpoint), plan_of(link.receive(kOrderDeadline)), index);
    link.send({{"ready", true}});
    while (link.wait()) link.send(obey(client, link.receive(kOrderDeadline)));
  });
}

}  // namespace leeway::bench
