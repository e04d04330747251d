#include "server/plan_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace leeway::server {
namespace {

std::vector<std::byte> to_bytes(const std::string& text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

std::string to_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string mismatch(const char* what) {
  return fmt::format("the scheduler's plan {}: it is of another version of Leeway", what);
}

WorkerPhase phase_of(rpc::MemberState::type state) {
  switch (state) {
    case rpc::MemberState::JOINING:
      return WorkerPhase::kJoining;
    case rpc::MemberState::LIVE:
      return WorkerPhase::kLive;
    case rpc::MemberState::RESOLVING:
      return WorkerPhase::kResolving;
    case rpc::MemberState::DEAD:
      return WorkerPhase::kDead;
    case rpc::MemberState::FINISHED:
      return WorkerPhase::kFinished;
  }
  return WorkerPhase::kDead;
}

}  // namespace

Result<EngineConfig> read_plan(EngineConfig base, const rpc::Plan& plan, const rpc::View& view) {
  EngineConfig config = std::move(base);
  auto settings = JobSettings::from_values(plan.settings);
  if (!settings) return tl::unexpected(settings.error());
  config.settings = std::move(*settings);
  config.restore = plan.restore;
  for (const rpc::TensorSpec& tensor : plan.tensors)
    config.tensors.push_back({tensor.name, tensor.shape, {}});
  for (const rpc::Member& member : view.servers)
    if (const ServerId id(static_cast<std::uint32_t>(member.id)); id != config.server)
      config.others[id] = {Incarnation(static_cast<std::uint64_t>(member.incarnation)),
                           to_bytes(member.fabric.address)};
  for (const rpc::Partition& partition : plan.partitions) {
    if (partition.tensor < 0 || static_cast<std::size_t>(partition.tensor) >= plan.tensors.size() ||
        partition.first < 0 || partition.elements < 0)
      return fail(Code::kInvalidArgument, mismatch("has a partition outside its tensor"));
    if (const ServerId server(static_cast<std::uint32_t>(partition.server));
        server != config.server) {
      auto& others = config.tensors[static_cast<std::size_t>(partition.tensor)].others;
      if (!config.others.contains(server))
        return fail(Code::kInvalidArgument, mismatch("has a partition on a server that is none"));
      if (std::ranges::find(others, server) == others.end()) others.push_back(server);
      continue;
    }
    const PartitionId id(static_cast<std::uint32_t>(partition.id));
    if (!config.partitions.empty() && id <= config.partitions.back().id)
      return fail(Code::kInvalidArgument, mismatch("has partitions out of order"));
    config.partitions.push_back({id, static_cast<std::uint32_t>(partition.tensor),
                                 static_cast<std::uint64_t>(partition.first),
                                 static_cast<std::uint64_t>(partition.elements)});
  }
  for (const rpc::Member& member : view.workers) {
    CoreConfig::Worker worker{.incarnation =
                                  Incarnation(static_cast<std::uint64_t>(member.incarnation))};
    if (const auto progress = plan.progress.find(member.id); progress != plan.progress.end()) {
      worker.clock = Clock(static_cast<std::uint64_t>(progress->second.clock));
      worker.state = to_bytes(progress->second.state);
    }
    config.workers.emplace(WorkerId(static_cast<std::uint32_t>(member.id)), std::move(worker));
  }
  return config;
}

Result<EngineView> read_view(const rpc::View& view, const rpc::Plan& plan) {
  EngineView out{.epoch = view.epoch};
  for (const rpc::Member& member : view.workers)
    out.workers.push_back(
        {{WorkerId(static_cast<std::uint32_t>(member.id)),
          Incarnation(static_cast<std::uint64_t>(member.incarnation)), phase_of(member.state),
          Clock(static_cast<std::uint64_t>(member.final_clock)),
          static_cast<float>(member.final_factor),
          static_cast<std::uint32_t>(std::max<std::int64_t>(member.final_samples, 1)),
          Clock(static_cast<std::uint64_t>(member.first_clock))},
         to_bytes(member.fabric.address)});
  if (view.initializer >= 0)
    out.initializer = WorkerId(static_cast<std::uint32_t>(view.initializer));
  out.paused = view.paused;
  out.checkpoint = view.checkpoint.id;
  out.order = view.checkpoint.stage == rpc::CheckpointStage::HOLD  ? EngineView::Order::kHold
              : view.checkpoint.stage == rpc::CheckpointStage::CUT ? EngineView::Order::kCut
                                                                   : EngineView::Order::kNone;
  for (const auto& [worker, clock] : view.checkpoint.clocks)
    out.cut[WorkerId(static_cast<std::uint32_t>(worker))] =
        Clock(static_cast<std::uint64_t>(clock));
  std::map<std::string, std::string> values = plan.settings;
  for (const auto& [name, value] : view.settings) values[name] = value;
  auto settings = JobSettings::from_values(values);
  if (!settings) return tl::unexpected(settings.error());
  out.settings = std::move(*settings);
  return out;
}

rpc::ServerReport write_report(const EngineReport& report) {
  rpc::ServerReport out;
  out.ready = true;
  out.epoch = report.epoch;
  for (const auto& [worker, clock] : report.applied)
    out.applied[static_cast<std::int32_t>(worker.value())] =
        static_cast<std::int64_t>(clock.value());
  for (const auto& [worker, clock] : report.resolving)
    out.resolving[static_cast<std::int32_t>(worker.value())] =
        static_cast<std::int64_t>(clock.value());
  for (const auto& [worker, clock] : report.joining)
    out.joining[static_cast<std::int32_t>(worker.value())] =
        clock ? static_cast<std::int64_t>(clock->value()) : -1;
  for (const auto& [worker, factor] : report.last_factors)
    out.last_factors[static_cast<std::int32_t>(worker.value())] = factor;
  for (const auto& [worker, samples] : report.last_samples)
    out.last_samples[static_cast<std::int32_t>(worker.value())] = samples;
  out.held = report.held;
  if (report.durable) {
    out.durable = report.durable->id;
    out.shard_digest = report.durable->digest;
    out.durable_bytes = static_cast<std::int64_t>(report.durable->bytes);
    out.durable_updates = static_cast<std::int64_t>(report.durable->updates);
    for (const auto& [worker, state] : report.durable->worker_states)
      out.worker_states[static_cast<std::int32_t>(worker.value())] = to_text(state);
  }
  out.checkpoint_error = report.checkpoint_error;
  out.updates = static_cast<std::int64_t>(report.updates);
  out.bytes_read = static_cast<std::int64_t>(report.bytes_read);
  out.bytes_written = static_cast<std::int64_t>(report.bytes_written);
  out.memory_bytes = static_cast<std::int64_t>(report.memory_bytes);
  out.shard_elements = static_cast<std::int64_t>(report.elements);
  out.waiting = report.waiting;
  return out;
}

rpc::FabricAddress write_address(const transport::EndpointInfo& info) {
  rpc::FabricAddress address;
  address.fabric = info.fabric;
  address.provider = info.provider;
  address.device = info.device;
  address.printable = info.printable;
  address.address = to_text(info.address);
  return address;
}

}  // namespace leeway::server
