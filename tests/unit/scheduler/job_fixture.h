// A job by hand: plays the servers and workers of a JobCore with a clock of its own.
#pragma once

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <vector>

#include "scheduler/job_core.h"

namespace leeway::scheduler {

inline rpc::TensorSpec tensor(std::string name, std::vector<std::int64_t> shape) {
  rpc::TensorSpec spec;
  spec.name = std::move(name);
  spec.shape = std::move(shape);
  return spec;
}

inline rpc::Model small_model() {
  rpc::Model model;
  model.tensors = {tensor("weight", {30, 100}), tensor("bias", {100})};
  return model;
}

inline JobSetup setup_of(std::uint32_t servers, std::uint32_t workers,
                         SettingValues settings = {}) {
  JobSetup setup;
  setup.servers = servers;
  setup.workers = workers;
  setup.job = 77;
  setup.first_incarnation = 100;
  setup.settings = std::move(settings);
  return setup;
}

inline JobSetup with_directory(JobSetup setup) {
  setup.checkpoint_dir = "checkpoints";
  return setup;
}

inline rpc::RegisterRequest request_of(rpc::Role::type role, std::int32_t id,
                                       std::int64_t pid = 1000) {
  rpc::RegisterRequest request;
  request.token = "token";
  request.role = role;
  request.id = id;
  request.host = "node";
  request.pid = pid + id;
  request.fabric.provider = "tcp";
  request.fabric.address = "somewhere";
  return request;
}

class Job {
 public:
  explicit Job(JobSetup setup, TimePoint start = TimePoint{} + std::chrono::hours(1))
      : now(start), servers(setup.servers), workers(setup.workers), core(std::move(setup), now) {}

  rpc::Caller caller(rpc::Role::type role, std::int32_t id) const {
    rpc::Caller who;
    who.token = "token";
    who.role = role;
    who.id = id;
    const auto it = incarnations.find({role, id});
    who.incarnation = it == incarnations.end() ? 0 : it->second;
    return who;
  }
  rpc::Caller server(std::int32_t id) const { return caller(rpc::Role::SERVER, id); }
  rpc::Caller worker(std::int32_t id) const { return caller(rpc::Role::WORKER, id); }

  void join(rpc::Role::type role, std::int32_t id, std::int64_t pid = 1000) {
    auto joined = core.join(request_of(role, id, pid), now);
    REQUIRE_MESSAGE(joined.has_value(), (joined ? "" : joined.error().message));
    incarnations[{role, id}] = joined->incarnation;
  }
  void join_all() {
    for (std::uint32_t id = 0; id < servers; ++id) join(rpc::Role::SERVER, id);
    for (std::uint32_t id = 0; id < workers; ++id) join(rpc::Role::WORKER, id);
  }
  void plan(const rpc::Model& model = small_model()) {
    join_all();
    for (std::uint32_t id = 0; id < workers; ++id) {
      auto declared = core.declare(worker(static_cast<std::int32_t>(id)), model, now);
      REQUIRE_MESSAGE(declared.has_value(), (declared ? "" : declared.error().message));
    }
    REQUIRE(core.phase() == rpc::Phase::PLANNED);
  }
  void run(const rpc::Model& model = small_model()) {
    plan(model);
    for (std::uint32_t id = 0; id < servers; ++id) {
      auto& report = server_reports[static_cast<std::int32_t>(id)];
      report.ready = true;
      say_server(static_cast<std::int32_t>(id));
    }
    for (std::uint32_t id = 0; id < workers; ++id) say_worker(static_cast<std::int32_t>(id));
    REQUIRE(core.phase() == rpc::Phase::RUNNING);
  }

  // Sends the report as it stands, for the view of now.
  void say_server(std::int32_t id) {
    server_reports[id].epoch = core.epoch();
    auto status = core.report(server(id), server_reports[id], now);
    REQUIRE_MESSAGE(status.has_value(), (status ? "" : status.error().message));
  }
  void say_worker(std::int32_t id) {
    auto status = core.report(worker(id), worker_reports[id], now);
    REQUIRE_MESSAGE(status.has_value(), (status ? "" : status.error().message));
  }
  // Everybody but `silent_worker` reports, every 200 ms for `duration`.
  void pass(milliseconds duration, std::int32_t silent_worker = -1,
            std::int32_t silent_server = -1) {
    for (const TimePoint end = now + duration; now < end; now += milliseconds(200)) {
      core.tick(now);
      for (const rpc::Member& m : core.view().servers)
        if (m.id != silent_server && m.state == rpc::MemberState::LIVE) say_server(m.id);
      for (const rpc::Member& m : core.view().workers)
        if (m.id != silent_worker &&
            (m.state == rpc::MemberState::LIVE || m.state == rpc::MemberState::FINISHED))
          say_worker(m.id);
    }
  }

  // Every server says how far it has applied every worker.
  void applied(std::int64_t clock) {
    for (std::uint32_t s = 0; s < servers; ++s) {
      for (std::uint32_t w = 0; w < workers; ++w)
        server_reports[static_cast<std::int32_t>(s)].applied[static_cast<std::int32_t>(w)] = clock;
      say_server(static_cast<std::int32_t>(s));
    }
  }
  std::string hold_all() {
    const std::string id = core.view().checkpoint.id;
    for (std::uint32_t s = 0; s < servers; ++s) {
      server_reports[static_cast<std::int32_t>(s)].held = id;
      say_server(static_cast<std::int32_t>(s));
    }
    return id;
  }
  void durable_all() {
    const std::string id = core.view().checkpoint.id;
    for (std::uint32_t s = 0; s < servers; ++s) {
      auto& report = server_reports[static_cast<std::int32_t>(s)];
      report.durable = id;
      report.shard_digest = "digest " + std::to_string(s);
      report.durable_bytes = 10;
      say_server(static_cast<std::int32_t>(s));
    }
  }
  // Carries a checkpoint from HOLD to its commit.
  storage::Manifest save() {
    REQUIRE(core.view().checkpoint.stage == rpc::CheckpointStage::HOLD);
    hold_all();
    REQUIRE(core.view().checkpoint.stage == rpc::CheckpointStage::CUT);
    durable_all();
    auto effects = core.take_effects();
    REQUIRE(effects.commit.has_value());
    core.committed(*effects.commit, {}, now);
    return *effects.commit;
  }
  Status finish(std::int32_t id, std::int64_t clock) {
    worker_reports[id].clock = clock;
    return core.finish(worker(id), worker_reports[id], now);
  }
  const rpc::Member& worker_member(std::int32_t id) {
    last_view = core.view();
    return last_view.workers.at(static_cast<std::size_t>(id));
  }

  TimePoint now;
  std::uint32_t servers, workers;
  JobCore core;
  std::map<std::pair<rpc::Role::type, std::int32_t>, std::int64_t> incarnations;
  std::map<std::int32_t, rpc::ServerReport> server_reports;
  std::map<std::int32_t, rpc::WorkerReport> worker_reports;
  rpc::View last_view;
};

inline bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

template <typename T>
std::string error_of(const Result<T>& result) {
  return result ? "" : result.error().message;
}

}  // namespace leeway::scheduler
