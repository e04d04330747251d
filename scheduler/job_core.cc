// What members and people say to the job. What follows from it: job_progress.cc; how it looks:
// job_view.cc.
#include "scheduler/job_core.h"

#include <fmt/format.h>

#include <algorithm>

#include "scheduler/one_line.h"

namespace leeway::scheduler {
namespace {

const storage::Manifest* find_checkpoint(const std::vector<storage::Manifest>& history,
                                         const std::string& id) {
  const auto it =
      std::find_if(history.begin(), history.end(), [&](const auto& m) { return m.id == id; });
  return it == history.end() ? nullptr : &*it;
}

std::optional<storage::Manifest> restored(const JobSetup& setup) {
  if (setup.restore.empty()) return std::nullopt;
  if (const storage::Manifest* manifest = find_checkpoint(setup.history, setup.restore)) {
    if (setup.places > setup.workers && manifest->workers.size() <= setup.places) return *manifest;
    if (manifest->workers.size() != setup.workers)
      throw ConfigError(fmt::format(
          "checkpoint {} is of {} workers and this job has {}; resume with --workers {}, or start "
          "anew with --resume never",
          manifest->id, manifest->workers.size(), setup.workers, manifest->workers.size()));
    return *manifest;
  }
  std::string known;
  for (const storage::Manifest& manifest : setup.history)
    known += (known.empty() ? "" : ", ") + manifest.id;
  throw ConfigError(fmt::format("there is no checkpoint '{}' in {}; {}", setup.restore,
                                setup.checkpoint_dir,
                                known.empty() ? "it has none" : "it has " + known));
}

std::uint64_t last_number(const std::vector<storage::Manifest>& history) {
  std::uint64_t last = 0;
  for (const storage::Manifest& manifest : history)
    last = std::max(last, CheckpointCore::number_of(manifest.id));
  return last;
}

}  // namespace

JobCore::JobCore(JobSetup setup, TimePoint now)
    : setup_(std::move(setup)),
      members_(setup_.servers, places(), setup_.first_incarnation),
      model_(setup_.settings, restored(setup_)),
      checkpoint_(setup_.servers, last_number(setup_.history)),
      settings_(model_.settings()),
      started_(now),
      last_tick_(now),
      latest_(now) {
  if (setup_.servers == 0 || setup_.workers == 0)
    throw ConfigError("a job needs at least one server and one worker");
  for (const storage::Manifest& manifest : setup_.history) committed_.push_back(info_of(manifest));
}

Result<rpc::Registration> JobCore::join(const rpc::RegisterRequest& request, TimePoint now) {
  rpc::RegisterRequest place = request;
  if (request.role == rpc::Role::WORKER && request.id < 0) {
    const auto id = free_place(request);
    if (!id) return tl::unexpected(id.error());
    place.id = *id;
  }
  auto seat = members_.seat(place.role, place.id);
  if (!seat) return tl::unexpected(std::move(seat.error()));
  const std::int64_t before = (*seat)->who.incarnation;
  if (!Membership::holds(**seat, place)) {
    if (auto status = may_join(**seat, place.role, now); !status)
      return tl::unexpected(std::move(status.error()));
    if (phase_ == rpc::Phase::RUNNING) begin_join(**seat, place, now);
  }
  seat = members_.join(place, now);
  if (!seat) return tl::unexpected(std::move(seat.error()));
  if ((*seat)->who.incarnation != before) touch();
  rpc::Registration out;
  out.incarnation = (*seat)->who.incarnation;
  out.job = setup_.job;
  out.settings = values_of(settings_);
  out.checkpoint_dir = setup_.checkpoint_dir;
  out.servers = static_cast<std::int32_t>(setup_.servers);
  out.workers = static_cast<std::int32_t>(places());
  out.id = place.id;
  advance(now);
  return out;
}

Status JobCore::declare(const rpc::Caller& who, const rpc::Model& model, TimePoint now) {
  auto seat = members_.find(who);
  if (!seat) return tl::unexpected(std::move(seat.error()));
  if (who.role != rpc::Role::WORKER)
    return fail(Code::kInvalidArgument, "only workers declare tensors");
  if (auto status = model_.declare(who.id, model); !status) return status;
  (*seat)->declared = true;
  (*seat)->heard = now;
  advance(now);
  return {};
}

Status JobCore::report(const rpc::Caller& who, const rpc::WorkerReport& report, TimePoint now) {
  auto seat = members_.find(who);
  if (!seat) return tl::unexpected(std::move(seat.error()));
  if (who.role != rpc::Role::WORKER)
    return fail(Code::kInvalidArgument, "a worker's report must come from a worker");
  // What it said with its end stands: a report from before may come later.
  if ((*seat)->who.state != rpc::MemberState::FINISHED) members_.hear(**seat, report, now);
  advance(now);
  return {};
}

Status JobCore::report(const rpc::Caller& who, const rpc::ServerReport& report, TimePoint now) {
  auto seat = members_.find(who);
  if (!seat) return tl::unexpected(std::move(seat.error()));
  if (who.role != rpc::Role::SERVER)
    return fail(Code::kInvalidArgument, "a server's report must come from a server");
  members_.hear(**seat, report, now);
  checkpoint_.on_report(static_cast<std::uint32_t>(who.id), report);
  advance(now);
  return {};
}

Result<rpc::Plan> JobCore::plan(const rpc::Caller& who) {
  auto seat = members_.find(who);
  if (!seat) return tl::unexpected(std::move(seat.error()));
  if (phase_ == rpc::Phase::GATHERING)
    return fail(Code::kUnavailable, "there is no plan yet: " + who_is_missing());
  if (!(*seat)->joined_later) return plan_;
  if (auto status = joined(**seat); !status) return tl::unexpected(std::move(status.error()));
  rpc::Plan plan = plan_;
  plan.progress[who.id] = {};
  plan.progress[who.id].clock = (*seat)->who.first_clock;
  return plan;
}

Status JobCore::finish(const rpc::Caller& who, const rpc::WorkerReport& report, TimePoint now) {
  auto seat = members_.find(who);
  if (!seat) return tl::unexpected(std::move(seat.error()));
  if (who.role != rpc::Role::WORKER) return fail(Code::kInvalidArgument, "only workers finish");
  if ((*seat)->who.state == rpc::MemberState::FINISHED) return {};
  if (!trains() || (*seat)->joining())
    return fail(Code::kRefused,
                fmt::format("worker {} cannot finish: the job is {}", who.id, phase_name()));
  members_.hear(**seat, report, now);
  (*seat)->who.state = rpc::MemberState::FINISHED;
  (*seat)->who.final_clock = report.clock;
  touch();
  say(fmt::format("worker {} finished at clock {}", who.id, report.clock));
  advance(now);
  return {};
}

Status JobCore::fault(const rpc::Caller& who, const std::string& reason, TimePoint now) {
  auto seat = members_.find(who);
  if (!seat) return tl::unexpected(std::move(seat.error()));
  latest_ = now;
  if ((*seat)->joining()) {  // nobody counts on it yet
    forget_joiner(**seat, one_line(reason));
    advance(now);
    return {};
  }
  // Nor on one that was taken in and has done nothing: the job trained without it.
  if (trains() && (*seat)->live() && (*seat)->joined_later &&
      (*seat)->worker.clock <= (*seat)->who.first_clock) {
    lose_worker(**seat, one_line(reason));
    advance(now);
    return {};
  }
  (*seat)->error = one_line(reason);
  fail_job(fmt::format("{}: {}", Membership::describe(**seat, who.role), (*seat)->error));
  return {};
}

Status JobCore::lost(rpc::Role::type role, std::int32_t id, const std::string& why, bool fails_job,
                     TimePoint now) {
  auto found = members_.seat(role, id);
  if (!found) return tl::unexpected(std::move(found.error()));
  latest_ = now;
  Seat& seat = **found;
  const std::string reason = one_line(why);
  const bool finished = seat.who.state == rpc::MemberState::FINISHED;
  if (over() || (finished && !fails_job)) return {};
  if (seat.joining()) return {};  // said of whoever had its place
  const std::string line = fmt::format("{} {}: {}", Membership::role_name(role), id, reason);
  if (fails_job || phase_ == rpc::Phase::GATHERING) {
    seat.error = reason;
    fail_job(line);
  } else if (seat.live()) {
    if (role == rpc::Role::SERVER)
      lose_server(seat, reason);
    else
      lose_worker(seat, reason);
  }
  advance(now);
  return {};
}

Result<std::string> JobCore::checkpoint(TimePoint now) {
  if (setup_.checkpoint_dir.empty())
    return fail(Code::kUnsupported,
                "this job has no checkpoint directory; start it with --checkpoint-dir");
  if (phase_ != rpc::Phase::RUNNING)
    return fail(Code::kRefused,
                fmt::format("the job is {}: there is nothing to save", phase_name()));
  if (somebody_joins()) return fail(Code::kUnavailable, "a worker joins at this moment; ask again");
  requested_ = !checkpoint_.active();
  advance(now);
  if (!checkpoint_.active()) return fail(Code::kRefused, "the job is over");
  return checkpoint_.id();
}

std::optional<Status> JobCore::outcome(const std::string& id) const {
  const auto it = outcomes_.find(id);
  if (it == outcomes_.end()) return std::nullopt;
  return it->second;
}

Status JobCore::change(const std::string& key, const std::string& value) {
  // What servers read from View.settings while they run.
  static const std::vector<std::string> kChangeable = {
      "learning_rate", "schedule", "schedule_steps", "schedule_factor", "warmup_steps"};
  if (over()) return fail(Code::kRefused, "the job is over");
  if (std::find(kChangeable.begin(), kChangeable.end(), key) == kChangeable.end())
    return fail(Code::kInvalidArgument,
                fmt::format("'{}' cannot change while the job runs; what can: {}", one_line(key),
                            fmt::join(kChangeable, ", ")));
  SettingValues values = values_of(settings_);
  values[key] = value;
  auto settings = effective_settings({}, values);
  if (!settings) return tl::unexpected(std::move(settings.error()));
  changes_[key] = value;
  settings_ = std::move(*settings);
  touch();
  say(fmt::format("{} = {} from now on", key, value));
  return {};
}

void JobCore::stop(const std::string& reason, TimePoint now) {
  if (over() || stop_) return;
  stop_ = one_line(reason);
  say("stopping: " + *stop_);
  advance(now);
}

void JobCore::interrupt(const std::string& reason) {
  if (!over()) fail_job(one_line(reason));
}

Effects JobCore::take_effects() { return std::exchange(effects_, Effects{}); }

}  // namespace leeway::scheduler
