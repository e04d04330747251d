#include "tests/bench/pushpull_member.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/log.h"
#include "server/engine.h"
#include "tests/bench/child_json.h"
#include "tests/bench/pushpull_client.h"
#include "tests/bench/step_client.h"

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
          .tensors = message.at("tensors"),
          .partition_elements = message.at("partition_elements"),
          .servers = static_cast<std::uint32_t>(message.at("servers").size()),
          .step_core = message.at("step_core"),
          .checksum = message.at("checksum"),
          .optimizer = message.at("optimizer"),
          .memory_limit = message.at("memory_limit"),
          .threads = message.at("threads"),
          .uniform = message.at("uniform"),
          .server_addresses = addresses(message.at("servers")),
          .worker_addresses = addresses(message.at("workers"))};
}

server::EngineConfig engine_config(const PushPullPlan& plan, std::uint32_t index) {
  server::EngineConfig config{.server = ServerId(index),
                              .incarnation = server_incarnation(index),
                              .job = kJob,
                              .servers = plan.servers,
                              .threads = plan.threads != 0
                                             ? plan.threads
                                             : std::max(1u, std::thread::hardware_concurrency())};
  config.settings = settings_of(plan);
  for (std::size_t t = 0; t < plan.tensors; ++t)
    config.tensors.push_back(
        {plan.name_of(t), {static_cast<std::int64_t>(plan.tensor_elements())}});
  for (std::size_t p = 0; p < plan.partitions(); ++p)
    if (plan.server_of(p) == index)
      config.partitions.push_back({PartitionId(static_cast<std::uint32_t>(p)),
                                   static_cast<std::uint32_t>(plan.tensor_of(p)),
                                   plan.tensors == 1 ? plan.begin(p) : 0, plan.length(p)});
  for (std::uint32_t w = 0; w < plan.worker_addresses.size(); ++w)
    config.workers[WorkerId(w)] = {worker_incarnation(w), Clock(0), {}};
  return config;
}

server::EngineView engine_view(const PushPullPlan& plan, const JobSettings& settings) {
  server::EngineView view{.epoch = 1, .initializer = WorkerId(0), .settings = settings};
  for (std::uint32_t w = 0; w < plan.worker_addresses.size(); ++w)
    view.workers.push_back(
        {{WorkerId(w), worker_incarnation(w), server::WorkerPhase::kLive, Clock(0)},
         plan.worker_addresses[w]});
  return view;
}

// What the process holds in memory now, shared memory included, in bytes.
std::uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

nlohmann::json processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return {{"seconds", seconds(usage.ru_utime) + seconds(usage.ru_stime)}};
}

nlohmann::json as_json(const Moved& moved) {
  // Processes of one machine share this clock.
  const auto nanoseconds = [](TimePoint t) { return t.time_since_epoch().count(); };
  return {
      {"begin", nanoseconds(moved.begin)}, {"end", nanoseconds(moved.end)}, {"bytes", moved.bytes}};
}

nlohmann::json as_json(const server::EngineReport& report) {
  return {{"updates", report.updates},
          {"seconds", report.update_seconds},
          {"processor", report.update_processor_seconds}};
}

nlohmann::json measure(PushPullClient& client, const std::string& what,
                       const nlohmann::json& order) {
  if (what == "round trips")
    return {{"microseconds",
             client.round_trips(order.at("count"), milliseconds(order.at("pause_ms").get<int>()))}};
  const int steps = order.at("steps");
  return as_json(what == "push"    ? client.push(steps)
                 : what == "pull"  ? client.pull(steps)
                 : what == "apply" ? client.apply(steps)
                                   : client.both(steps));
}

nlohmann::json measure(StepClient& client, const std::string&, const nlohmann::json& order) {
  return as_json(client.step(order.at("steps")));
}

template <typename Client>
nlohmann::json obey(Client& client, const nlohmann::json& order) {
  const std::string what = order.at("do");
  if (what == "processor") return processor_seconds();
  if (what == "initial")
    client.push_initial();
  else if (what == "check")
    client.check(order.at("steps"));
  else
    return measure(client, what, order);
  return {{"done", true}};
}

// Pulls all the time, until the next message. Says when it has begun, and at the end what it moved.
void keep_pulling(Link& link, PushPullClient& client, bool check) {
  Moved moved{.begin = MonotonicClock::now()};
  for (bool begun = false; !link.ready(milliseconds(0)); begun = true) {
    moved.bytes += client.pull(1).bytes;
    if (check) client.check_uniform();
    if (!begun) link.send({{"begun", true}});
  }
  link.receive(kOrderDeadline);
  moved.end = MonotonicClock::now();
  link.send(as_json(moved));
}

void serve(Link& link, PushPullClient& client) {
  link.send({{"ready", true}});
  while (link.wait()) {
    const nlohmann::json order = link.receive(kOrderDeadline);
    if (order.at("do") == "keep pulling")
      keep_pulling(link, client, order.at("check"));
    else
      link.send(obey(client, order));
  }
}

void serve(Link& link, StepClient& client) {
  link.send({{"ready", true}});
  while (link.wait()) link.send(obey(client, link.receive(kOrderDeadline)));
}

}  // namespace

int serve_as_server(const std::string& fabric, std::uint32_t index) {
  Link link(adopt_socket());
  return guarded(link, [&] {
    log::start(fmt::format("server.{}", index), log::Level::kWarning);
    auto endpoint = transport::Endpoint::open({.fabric = fabric, .peers = kPeers});
    link.send({{"address", to_json(endpoint->info().address)}});
    const PushPullPlan plan = plan_of(link.receive(kOrderDeadline));
    const server::EngineConfig config = engine_config(plan, index);
    server::Engine engine(std::move(endpoint), config);
    engine.view(engine_view(plan, config.settings));
    // The report comes after the view: the engine has connected to the workers by then.
    const auto report = value_or_throw(engine.report());
    if (!report.fault.empty()) throw std::runtime_error(report.fault);
    link.send({{"ready", true}});
    while (link.wait()) {
      const nlohmann::json order = link.receive(kOrderDeadline);
      if (order.at("do") == "updates")
        link.send(as_json(value_or_throw(engine.report())));
      else if (order.at("do") == "memory")
        link.send({{"planned", report.memory_bytes}, {"resident", resident_bytes()}});
      else
        link.send(processor_seconds());
    }
  });
}

int serve_as_worker(const std::string& fabric, std::uint32_t index) {
  Link link(adopt_socket());
  return guarded(link, [&] {
    log::start(fmt::format("worker.{}", index), log::Level::kWarning);
    auto endpoint = transport::Endpoint::open({.fabric = fabric, .peers = kPeers});
    link.send({{"address", to_json(endpoint->info().address)}});
    const PushPullPlan plan = plan_of(link.receive(kOrderDeadline));
    if (plan.step_core) {
      StepClient client(std::move(endpoint), plan, index);
      serve(link, client);
    } else {
      PushPullClient client(std::move(endpoint), plan, index);
      serve(link, client);
    }
  });
}

}  // namespace leeway::bench
