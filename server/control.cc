#include "server/control.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "common/inject.h"
#include "common/log.h"
#include "scheduler/client.h"
#include "server/engine.h"
#include "server/plan_reader.h"
#include "transport/numa_bind.h"

namespace leeway::server {
namespace {

constexpr milliseconds kJoinPatience{30000};
constexpr milliseconds kSchedulerPatience{60000};
constexpr milliseconds kFabricPatience{30000};
constexpr milliseconds kRetry{100};
constexpr milliseconds kSoon{5};  // while others wait for what this server reports
// Queues are sized before the job is known; more workers than this only wait a little.
constexpr std::uint32_t kPeers = 64;

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "?";
}

// Before any other thread is started and the shard's memory is touched.
void bind_near_nics(const transport::EndpointInfo& info) {
  const transport::NumaMachine machine = transport::read_numa();
  if (machine.nodes.size() < 2) return;
  std::vector<transport::NicInUse> nics;
  for (const transport::EndpointInfo::Rail& rail : info.rails)
    if (rail.near && rail.fabric != "shm")
      nics.push_back({rail.device, rail.numa_node, rail.megabits / 1000.0});
  const transport::NumaPlan plan = transport::choose_numa(machine.nodes, nics, machine.confined);
  log::info("{}", transport::describe(plan));
  if (const Status bound = transport::bind_to(plan); !bound)
    log::warning("the system did not let this server be bound: {}; it runs, but may be slower",
                 bound.error().message);
}

class Control {
 public:
  Control(const ServerOptions& options, const std::atomic<bool>& terminate)
      : options_(options), terminate_(terminate), client_(options.scheduler) {
    base_.server = ServerId(options.id);
    for (const Injection& injection : value_or_throw(parse_injections(options.inject)))
      if (injection.server && injection.index == options.id) base_.kill_at_step = injection.at_step;
    endpoint_ = transport::Endpoint::open(
        {.fabric = options.fabric, .bind = options.bind, .peers = kPeers, .thread_name = "fabric"});
    const transport::EndpointInfo& info = endpoint_->info();
    bind_near_nics(info);
    base_.threads = options.threads != 0 ? options.threads : transport::usable_cpus();
    log::info("fabric {}: {}; {} compute threads", info.fabric, transport::describe(info),
              base_.threads);
  }

  int run() {
    join();
    while (true) {
      if (terminate_) return leave(fmt::format("server.{} was told to terminate", options_.id));
      if (auto reason = step()) return leave(*reason);
      if (!view_) continue;
      if (view_->phase == rpc::Phase::DONE) return 0;
      if (view_->phase == rpc::Phase::FAILED) {
        log::error("the job failed: {}", view_->reason);
        return 1;
      }
    }
  }

 private:
  void join() {
    rpc::RegisterRequest request;
    request.token = options_.token;
    request.role = rpc::Role::SERVER;
    request.id = static_cast<std::int32_t>(options_.id);
    request.host = host_name();
    request.pid = ::getpid();
    request.fabric = write_address(endpoint_->info());
    const TimePoint until = MonotonicClock::now() + kJoinPatience;
    while (true) {
      auto registration = client_.join(request);
      if (registration) {
        registration_ = std::move(*registration);
        break;
      }
      if (!registration.error().retryable() || MonotonicClock::now() > until || terminate_)
        throw ConfigError(fmt::format("server.{} could not join the job at {}: {}", options_.id,
                                      options_.scheduler, registration.error().message));
      std::this_thread::sleep_for(kRetry);
    }
    who_.token = options_.token;
    who_.role = rpc::Role::SERVER;
    who_.id = request.id;
    who_.incarnation = registration_.incarnation;
    base_.incarnation = Incarnation(static_cast<std::uint64_t>(registration_.incarnation));
    base_.job = static_cast<std::uint64_t>(registration_.job);
    base_.servers = static_cast<std::uint32_t>(registration_.servers);
    base_.places = static_cast<std::uint32_t>(registration_.workers);
    base_.checkpoint_dir = registration_.checkpoint_dir;
    settings_ = value_or_throw(JobSettings::from_values(registration_.settings));
    heard_ = MonotonicClock::now();
  }

  // One heartbeat. Returns why the server must leave.
  std::optional<std::string> step() {
    bool busy = false;
    auto report = make_report(busy);
    if (!report) return report.error().message;
    const bool starting = setup_.valid();
    const milliseconds wait = busy || starting ? kSoon : settings_.heartbeat_interval_ms;
    auto view = client_.watch(who_, view_ ? view_->epoch : 0, wait, *report);
    if (!view) {
      if (!view.error().retryable())
        return fmt::format("the scheduler refused server.{}: {}", options_.id,
                           view.error().message);
      if (MonotonicClock::now() - heard_ > kSchedulerPatience)
        return fmt::format(
            "the scheduler at {} was not reachable for {} s: {}", options_.scheduler,
            std::chrono::duration_cast<std::chrono::seconds>(kSchedulerPatience).count(),
            view.error().message);
      std::this_thread::sleep_for(kRetry);
      return std::nullopt;
    }
    heard_ = MonotonicClock::now();
    const bool news = !view_ || view->epoch != view_->epoch;
    view_ = std::move(*view);
    if (news && engine_)
      if (Status told = tell_engine(); !told) return told.error().message;
    return start_engine();
  }

  Result<rpc::ServerReport> make_report(bool& busy) {
    if (!engine_) {
      rpc::ServerReport report;
      report.epoch = view_ ? view_->epoch : 0;
      return report;
    }
    auto report = engine_->report();
    if (report) {
      last_report_ = std::move(*report);
      answered_ = MonotonicClock::now();
    } else if (MonotonicClock::now() - answered_ > kFabricPatience) {
      return tl::unexpected(report.error());
    }
    if (!last_report_.fault.empty())
      return fail(Code::kInternal, fmt::format("server.{}: {}", options_.id, last_report_.fault));
    busy = last_report_.busy;
    return write_report(last_report_);
  }

  Status tell_engine() {
    auto view = read_view(*view_, plan_);
    if (!view) return tl::unexpected(view.error());
    engine_->view(std::move(*view));
    return {};
  }

  // Allocating and restoring may take longer than the scheduler's patience with a silent member, so
  // it runs beside the heartbeats.
  std::optional<std::string> start_engine() {
    if (engine_ || view_->phase == rpc::Phase::GATHERING || view_->phase >= rpc::Phase::DONE)
      return std::nullopt;
    if (!setup_.valid()) {
      auto plan = client_.plan(who_);
      if (!plan) return give_up_unless_retryable(plan.error());
      plan_ = std::move(*plan);
      auto config = read_plan(base_, plan_, *view_);
      if (!config) return config.error().message;
      settings_ = config->settings;
      setup_ = std::async(std::launch::async,
                          [endpoint = std::move(endpoint_), config = std::move(*config)]() mutable {
                            return std::make_unique<Engine>(std::move(endpoint), std::move(config));
                          });
    }
    if (setup_.wait_for(milliseconds(0)) != std::future_status::ready) return std::nullopt;
    try {
      engine_ = setup_.get();
    } catch (const std::exception& e) {
      return fmt::format("server.{} cannot start: {}", options_.id, e.what());
    }
    answered_ = MonotonicClock::now();
    if (Status told = tell_engine(); !told) return told.error().message;
    return std::nullopt;
  }

  static std::optional<std::string> give_up_unless_retryable(const Error& error) {
    return error.retryable() ? std::nullopt : std::optional(error.message);
  }

  int leave(const std::string& reason) {
    log::error("{}", reason);
    if (const Status told = client_.fault(who_, reason); !told)
      log::warning("the scheduler did not hear of it: {}", told.error().message);
    return 1;
  }

  const ServerOptions options_;
  const std::atomic<bool>& terminate_;
  scheduler::Client client_;
  std::unique_ptr<transport::Endpoint> endpoint_;  // until the engine has it
  EngineConfig base_;
  rpc::Registration registration_;
  rpc::Caller who_;
  JobSettings settings_;
  std::optional<rpc::View> view_;
  rpc::Plan plan_;
  TimePoint heard_{};     // the scheduler, last
  TimePoint answered_{};  // the engine, last
  EngineReport last_report_;
  std::future<std::unique_ptr<Engine>> setup_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace

int run_server(const ServerOptions& options, const std::atomic<bool>& terminate) {
  pthread_setname_np(pthread_self(), "control");
  return Control(options, terminate).run();
}

}  // namespace leeway::server
