// How the job looks to members and to people.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "common/tensor.h"
#include "scheduler/job_core.h"

namespace leeway::scheduler {
namespace {

rpc::MemberStatus status_of(const Seat& seat, rpc::Role::type role, TimePoint now) {
  rpc::MemberStatus out;
  out.id = seat.who.id;
  out.role = Membership::role_name(role);
  out.error = seat.error;
  out.state = seat.taken() ? rpc::_MemberState_VALUES_TO_NAMES.at(seat.who.state) : "MISSING";
  if (!seat.taken()) return out;
  out.host = seat.host;
  out.pid = seat.pid;
  out.fabric = seat.who.fabric;
  out.incarnation = seat.who.incarnation;
  out.first_clock = seat.who.first_clock;
  out.seconds_since_heartbeat = seconds_between(seat.heard, now);
  out.samples_per_second = seat.samples.per_second();
  out.push_bytes_per_second = seat.pushed.per_second();
  out.pull_bytes_per_second = seat.pulled.per_second();
  if (role == rpc::Role::SERVER) {
    out.__set_server(seat.server);
    return out;
  }
  out.__set_worker(seat.worker);
  // What counts of its steps is the servers' word; its last heartbeat may be older.
  if (seat.who.state == rpc::MemberState::DEAD) out.worker.clock = seat.who.final_clock;
  return out;
}

}  // namespace

rpc::CheckpointInfo info_of(const storage::Manifest& manifest) {
  rpc::CheckpointInfo info;
  info.id = manifest.id;
  info.created_unix_s = static_cast<std::int64_t>(manifest.created_unix_s);
  for (const auto& [worker, saved] : manifest.workers)
    info.clocks[static_cast<std::int32_t>(worker)] = static_cast<std::int64_t>(saved.clock.value());
  info.bytes = static_cast<std::int64_t>(manifest.bytes);
  info.servers = static_cast<std::int32_t>(manifest.shard_digests.size());
  return info;
}

rpc::View JobCore::view() const {
  rpc::View view;
  view.epoch = epoch_;
  view.phase = phase_;
  view.reason = reason_;
  for (const Seat& seat : members_.servers())
    if (seat.taken()) view.servers.push_back(seat.who);
  for (const Seat& seat : members_.workers()) {
    if (!seat.taken()) continue;
    // Servers must hear how a worker ended before they hear of the next in its place.
    if (seat.joining() && seat.joined_later->before)
      view.workers.push_back(seat.joined_later->before->who);
    if (!seat.joining() || seat.joined_later->told) view.workers.push_back(seat.who);
  }
  view.checkpoint = checkpoint_.order();
  view.settings = changes_;
  view.initializer = initializer_;
  // A joiner's place is free when what its predecessor committed is applied, and that may need
  // steps of the others.
  view.paused = paused_since_.has_value() && !somebody_joins();
  return view;
}

rpc::JobStatus JobCore::status(TimePoint now) const {
  rpc::JobStatus out;
  out.job = setup_.job;
  out.epoch = epoch_;
  out.phase = phase_name();
  out.reason = reason_;
  if (phase_ == rpc::Phase::GATHERING) out.reason = who_is_missing();
  if (running_since_)
    out.seconds_running = seconds_between(*running_since_, over_at_.value_or(now));
  for (const Seat& seat : members_.servers())
    out.servers.push_back(status_of(seat, rpc::Role::SERVER, now));
  out.samples = replaced_.samples;
  out.replaced = replaced_;
  out.places = static_cast<std::int32_t>(places());
  for (const Seat& seat : members_.workers()) {
    if (!seat.taken() && seat.who.id >= static_cast<std::int32_t>(setup_.workers)) continue;
    out.workers.push_back(status_of(seat, rpc::Role::WORKER, now));
    if (seat.joining() && seat.joined_later->before)
      out.samples += seat.joined_later->before->worker.samples;
    out.samples += seat.worker.samples;
    if (seat.live()) out.samples_per_second += out.workers.back().samples_per_second;
  }
  out.settings = values_of(settings_);
  if (!committed_.empty()) out.__set_last_checkpoint(committed_.back());
  return out;
}

std::vector<rpc::TensorStatus> JobCore::tensors() const {
  std::vector<rpc::TensorStatus> out;
  for (const rpc::TensorSpec& tensor : plan_.tensors) {
    rpc::TensorStatus row;
    row.name = tensor.name;
    row.shape = tensor.shape;
    row.elements = static_cast<std::int64_t>(*element_count(tensor.shape));
    out.push_back(std::move(row));
  }
  std::set<std::pair<std::int32_t, std::int32_t>> places;
  for (const rpc::Partition& partition : plan_.partitions) {
    ++out[static_cast<std::size_t>(partition.tensor)].partitions;
    places.emplace(partition.tensor, partition.server);
  }
  for (const auto& [tensor, server] : places)
    out[static_cast<std::size_t>(tensor)].servers.push_back(server);
  return out;
}

std::vector<rpc::CheckpointInfo> JobCore::checkpoints() const { return committed_; }

std::string JobCore::phase_name() const { return rpc::_Phase_VALUES_TO_NAMES.at(phase_); }

std::string JobCore::who_is_missing() const {
  std::string text;
  const auto add = [&](const Seat& seat, std::string_view role, std::string_view what) {
    text += fmt::format("{}{} {} {}", text.empty() ? "" : "; ", role, seat.who.id, what);
    if (!seat.error.empty()) text += fmt::format(" (the last one was {})", seat.error);
  };
  for (const Seat& seat : members_.servers())
    if (!seat.taken()) add(seat, "server", "has not registered");
  for (std::uint32_t id = 0; id < setup_.workers; ++id) {
    const Seat& seat = members_.workers()[id];
    if (!seat.taken())
      add(seat, "worker", "has not registered");
    else if (!seat.declared)
      add(seat, "worker", "has not declared its tensors");
  }
  return text;
}

std::int64_t JobCore::first_clock(const Seat& worker) const {
  if (worker.joined_later) return worker.who.first_clock;
  const auto it = plan_.progress.find(worker.who.id);
  return it == plan_.progress.end() ? 0 : it->second.clock;
}

bool JobCore::any_worker(rpc::MemberState::type state) const {
  return std::any_of(members_.workers().begin(), members_.workers().end(),
                     [&](const Seat& seat) { return seat.is(state); });
}

}  // namespace leeway::scheduler
