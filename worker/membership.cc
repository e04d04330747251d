#include "worker/membership.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <span>
#include <utility>

namespace leeway::worker {
namespace {

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

}  // namespace

rpc::RegisterRequest register_request(const SessionOptions& options,
                                      const transport::EndpointInfo& fabric) {
  rpc::RegisterRequest request;
  request.token = options.token;
  request.role = rpc::Role::WORKER;
  request.id = options.rank == kAnyRank ? -1 : static_cast<std::int32_t>(options.rank);
  request.host = host_name();
  request.pid = getpid();
  request.fabric.fabric = fabric.fabric;
  request.fabric.provider = fabric.provider;
  request.fabric.device = fabric.device;
  request.fabric.printable = fabric.printable;
  request.fabric.address.assign(reinterpret_cast<const char*>(fabric.address.data()),
                                fabric.address.size());
  return request;
}

Result<JobSettings> settings_from(const std::map<std::string, std::string>& values) {
  auto settings = JobSettings::from_values(values);
  if (!settings)
    return fail(Code::kRefused, fmt::format("the scheduler is of another version of Leeway: {}",
                                            settings.error().message));
  return settings;
}

Result<Membership> membership_from(const rpc::Registration& registration,
                                   const SessionOptions& options) {
  if (options.world_size != kAnyRank &&
      registration.workers != static_cast<std::int64_t>(options.world_size))
    return fail(Code::kRefused, fmt::format("WORLD_SIZE is {} but the job has {} workers",
                                            options.world_size, registration.workers));
  auto settings = settings_from(registration.settings);
  if (!settings) return tl::unexpected(std::move(settings).error());
  return Membership{.job = static_cast<std::uint64_t>(registration.job),
                    .rank = options.rank == kAnyRank
                                ? static_cast<std::uint32_t>(std::max(registration.id, 0))
                                : options.rank,
                    .world_size = static_cast<std::uint32_t>(std::max(registration.workers, 1)),
                    .servers = static_cast<std::size_t>(std::max(registration.servers, 0)),
                    .settings = *std::move(settings),
                    .checkpoint_dir = registration.checkpoint_dir};
}

LossScaler scaler_for(const JobSettings& settings) {
  return LossScaler({.initial = settings.loss_scale_initial,
                     .min = settings.loss_scale_min,
                     .max = settings.loss_scale_max,
                     .growth_interval = settings.loss_scale_growth_interval});
}

Result<Beginning> beginning_of(const rpc::Plan& plan, std::int32_t worker,
                               const JobSettings& settings) {
  Beginning beginning{.clock = Clock(), .scaler = scaler_for(settings)};
  const auto progress = plan.progress.find(worker);
  if (progress == plan.progress.end()) return beginning;
  beginning.clock =
      Clock(static_cast<std::uint64_t>(std::max<std::int64_t>(progress->second.clock, 0)));
  const std::string& state = progress->second.state;
  if (state.empty()) return beginning;  // it had not done a step when the checkpoint was taken
  if (auto s = beginning.scaler.restore(std::as_bytes(std::span(state))); !s)
    return fail(s.error().code, fmt::format("checkpoint {}: {}", plan.restore, s.error().message));
  return beginning;
}

Result<std::vector<DataPlane::Server>> servers_in(const rpc::View& view, std::size_t count) {
  std::vector<DataPlane::Server> servers(count);
  std::size_t known = 0;
  for (const rpc::Member& member : view.servers) {
    if (member.id < 0 || static_cast<std::size_t>(member.id) >= count) continue;
    const auto address = std::as_bytes(std::span(member.fabric.address));
    servers[static_cast<std::size_t>(member.id)] = {
        .incarnation = Incarnation(static_cast<std::uint64_t>(member.incarnation)),
        .address = {address.begin(), address.end()},
        .printable = member.fabric.printable};
    ++known;
  }
  if (known != count)
    return fail(Code::kRefused,
                fmt::format("the scheduler names {} of the job's {} servers", known, count));
  return servers;
}

}  // namespace leeway::worker
