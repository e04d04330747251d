// What follows from what was said: phases, deaths, checkpoints, ends.
#include <fmt/format.h>

#include <algorithm>

#include "scheduler/job_core.h"
#include "scheduler/one_line.h"

namespace leeway::scheduler {
namespace {

// A server holds within a step; one that does not would stop everybody's training.
constexpr milliseconds kHoldDeadline{60'000};
// A worker stands after its step, and after those by which it is behind the others.
constexpr milliseconds kPauseDeadline{300'000};
// Between ticks: more means that this process, or the machine, was stopped.
constexpr milliseconds kSlept{1'000};
constexpr std::size_t kOutcomesKept = 16;

}  // namespace

void JobCore::tick(TimePoint now) {
  if (now - last_tick_ > kSlept) {
    members_.forgive(now - last_tick_);
    started_ += now - last_tick_;
    if (paused_since_) *paused_since_ += now - last_tick_;
  }
  last_tick_ = now;
  latest_ = now;
  if (over()) return;
  check_silence(now);
  if (phase_ == rpc::Phase::GATHERING && now - started_ > settings_.start_timeout_ms)
    fail_job(fmt::format("not everybody came within start_timeout_ms = {}: {}",
                         settings_.start_timeout_ms.count(), who_is_missing()));
  if (paused_since_ && now - *paused_since_ > settings_.rejoin_timeout_ms)
    fail_job(
        fmt::format("fewer than min_workers = {} are left and nobody joined within "
                    "rejoin_timeout_ms = {}",
                    settings_.min_workers, settings_.rejoin_timeout_ms.count()));
  if (checkpoint_.stage() == CheckpointCore::Stage::kPause &&
      now - checkpoint_.since() > kPauseDeadline)
    abort_checkpoint(fmt::format("{} did not come to a stand within {} s", not_standing(),
                                 kPauseDeadline.count() / 1000));
  if (checkpoint_.stage() == CheckpointCore::Stage::kHold &&
      now - checkpoint_.since() > kHoldDeadline)
    abort_checkpoint(fmt::format("{} did not hold within {} s", checkpoint_.not_held(),
                                 kHoldDeadline.count() / 1000));
  advance(now);
}

void JobCore::check_silence(TimePoint now) {
  const auto silent = [&](const Seat& seat) -> std::optional<std::string> {
    if (!seat.live() && !seat.joining()) return std::nullopt;
    // One that never reported may still be starting.
    const Duration limit = seat.reported ? settings_.member_timeout_ms : settings_.start_timeout_ms;
    const TimePoint since = seat.reported ? seat.heard : seat.joined;
    if (now - since <= limit) return std::nullopt;
    return fmt::format("silent for {:.1f} s (member_timeout_ms = {})", seconds_between(since, now),
                       settings_.member_timeout_ms.count());
  };
  for (Seat& seat : members_.servers())
    if (const auto why = silent(seat)) lose_server(seat, *why);
  for (Seat& seat : members_.workers())
    if (const auto why = silent(seat))
      seat.joining() ? forget_joiner(seat, *why) : lose_worker(seat, *why);
}

void JobCore::lose_server(Seat& seat, const std::string& why) {
  if (over()) return;
  const std::string who = Membership::describe(seat, rpc::Role::SERVER);
  seat.error = why;
  if (phase_ == rpc::Phase::GATHERING) {
    say(fmt::format("lost {}: {}; its place is free", who, why));
    Membership::vacate(seat);
    touch();
    return;
  }
  seat.who.state = rpc::MemberState::DEAD;
  fail_job(fmt::format("lost {}: {}", who, why));
}

void JobCore::lose_worker(Seat& seat, const std::string& why) {
  if (over()) return;
  const std::string who = Membership::describe(seat, rpc::Role::WORKER);
  seat.error = why;
  touch();
  if (phase_ == rpc::Phase::GATHERING) {
    say(fmt::format("lost {}: {}; its place is free", who, why));
    if (seat.declared) model_.withdraw(seat.who.id);
    settings_ = model_.settings();
    Membership::vacate(seat);
    return;
  }
  say(fmt::format("lost {}: {}; the others go on", who, why));
  if (trains()) {
    seat.who.state = rpc::MemberState::RESOLVING;
  } else {  // it took no step yet
    seat.who.state = rpc::MemberState::DEAD;
    seat.who.final_clock = first_clock(seat);
  }
}

void JobCore::advance(TimePoint now) {
  latest_ = now;
  if (over()) return;
  if (stop_ && !trains()) {
    enter(rpc::Phase::DONE, *stop_);
    return;
  }
  if (phase_ == rpc::Phase::GATHERING) make_plan();
  if (phase_ == rpc::Phase::PLANNED) run_when_ready(now);
  if (over()) return;
  if (trains()) resolve();
  advance_joins();
  pause_or_go_on(now);
  if (over()) return;
  ended_ = phase_ != rpc::Phase::GATHERING && !any_worker(rpc::MemberState::LIVE) &&
           !any_worker(rpc::MemberState::RESOLVING);
  // Nobody is left, but somebody comes, or is waited for.
  if (ended_ && !stop_ && !any_worker(rpc::MemberState::FINISHED) &&
      (paused_since_ || any_worker(rpc::MemberState::JOINING)))
    ended_ = false;
  if (ended_ || stop_ || phase_ == rpc::Phase::STOPPING) forget_joiners("the job is ending");
  if (ended_ && phase_ != rpc::Phase::STOPPING && !any_worker(rpc::MemberState::FINISHED) &&
      !(stop_ && settings_.min_workers > 0)) {
    std::string causes;
    for (const Seat& seat : members_.workers())
      if (seat.taken())
        causes += fmt::format("{}{}: {}", causes.empty() ? "" : "; ",
                              Membership::describe(seat, rpc::Role::WORKER), seat.error);
    fail_job("no worker is left: " + one_line(causes));
    return;
  }
  if (!trains()) return;
  update_initializer();
  advance_checkpoint(now);
}

void JobCore::make_plan() {
  const auto missing = [](const std::vector<Seat>& seats, std::uint32_t count, bool must_declare) {
    return std::any_of(seats.begin(), seats.begin() + count, [&](const Seat& seat) {
      return !seat.taken() || (must_declare && !seat.declared);
    });
  };
  if (missing(members_.servers(), setup_.servers, false) ||
      missing(members_.workers(), setup_.workers, true))
    return;
  auto plan = model_.plan(setup_.servers, setup_.workers);
  if (!plan) {
    fail_job(plan.error().message);
    return;
  }
  plan_ = std::move(*plan);
  settings_ = model_.settings();
  for (const auto& [key, value] : changes_) {
    SettingValues values = values_of(settings_);
    values[key] = value;
    if (auto settings = effective_settings({}, values)) settings_ = std::move(*settings);
  }
  initialized_ = !plan_.restore.empty();
  next_checkpoint_ = 0;
  enter(rpc::Phase::PLANNED, "");
  ready_epoch_ = epoch_;
  say(fmt::format("{} tensors in {} partitions on {} servers{}", plan_.tensors.size(),
                  plan_.partitions.size(), setup_.servers,
                  plan_.restore.empty() ? "" : "; restoring checkpoint " + plan_.restore));
}

void JobCore::run_when_ready(TimePoint now) {
  for (const Seat& seat : members_.servers())
    if (!seat.server.ready || seat.server.epoch < ready_epoch_) return;
  running_since_ = now;
  enter(rpc::Phase::RUNNING, "");
  const auto every = static_cast<std::int64_t>(
      std::min<std::uint64_t>(settings_.checkpoint_every, std::uint64_t{1} << 62));
  if (every > 0) {
    std::int64_t slowest = INT64_MAX;
    for (const Seat& seat : members_.workers())
      if (seat.taken()) slowest = std::min(slowest, first_clock(seat));
    next_checkpoint_ = (slowest / every + 1) * every;
  }
}

void JobCore::resolve() {
  for (Seat& worker : members_.workers()) {
    if (worker.who.state != rpc::MemberState::RESOLVING) continue;
    std::int64_t final_clock = first_clock(worker);
    double final_factor = 1;
    std::int64_t final_samples = 1;
    bool all = true;
    for (const Seat& server : members_.servers()) {
      const auto it = server.server.resolving.find(worker.who.id);
      if (it == server.server.resolving.end())
        all = false;
      else if (it->second > final_clock) {
        final_clock = it->second;
        // Every server that counts the step says the same.
        const auto factor = server.server.last_factors.find(worker.who.id);
        final_factor = factor == server.server.last_factors.end() ? 1 : factor->second;
        const auto samples = server.server.last_samples.find(worker.who.id);
        final_samples = samples == server.server.last_samples.end() ? 1 : samples->second;
      }
    }
    if (!all) continue;
    worker.who.final_factor = final_factor;
    worker.who.final_samples = final_samples;
    worker.who.state = rpc::MemberState::DEAD;
    worker.who.final_clock = final_clock;
    touch();
    say(fmt::format("{} of worker {}'s steps count", final_clock, worker.who.id));
  }
}

void JobCore::update_initializer() {
  // A joiner does not take it from one that is at it.
  std::int32_t chosen =
      initializer_ >= 0 && members_.workers()[static_cast<std::size_t>(initializer_)].live()
          ? initializer_
          : -1;
  for (const Seat& seat : members_.workers()) {
    // One step taken, or one worker through: every server has the initial values.
    if (seat.worker.clock > 0 || seat.who.state == rpc::MemberState::FINISHED) initialized_ = true;
    if (chosen < 0 && seat.live()) chosen = seat.who.id;
  }
  if (initialized_) chosen = -1;
  if (chosen == initializer_) return;
  initializer_ = chosen;
  touch();
}

void JobCore::advance_checkpoint(TimePoint now) {
  using Stage = CheckpointCore::Stage;
  if (checkpoint_.error()) {
    abort_checkpoint(*checkpoint_.error());
    if (over()) return;
  }
  if (const auto error = residual_error()) {
    abort_checkpoint(*error);
    if (over()) return;
  }
  if (checkpoint_.stage() == Stage::kPause) pause_workers(now);
  if (checkpoint_.stage() == Stage::kPause && paused_since_ && !checkpoint_.clocks().empty())
    abort_checkpoint("fewer than min_workers are left, and those behind get no weights");
  // Whoever died is resolved first: what counts of it must be the same on every server.
  if (checkpoint_.stage() == Stage::kHold && checkpoint_.all_held() &&
      !any_worker(rpc::MemberState::RESOLVING)) {
    checkpoint_.cut(cut_clocks());
    touch();
  }
  if (checkpoint_.stage() == Stage::kCut && checkpoint_.all_durable() && residuals_kept()) {
    storage::Manifest manifest = manifest_of(plan_, settings_);
    checkpoint_.commit(manifest);
    name_residuals(manifest);
    if (any_worker(rpc::MemberState::LIVE)) free_places_of_the_dead(manifest);
    effects_.commit = std::move(manifest);
  }
  if (!checkpoint_.active()) choose_checkpoint_or_end(now);
}

// The dead are not restored; whoever takes the place goes on where the slowest of the others is.
// The entry stays: the shards hold a record of every worker, and what the manifest does not know
// counts as damage.
void JobCore::free_places_of_the_dead(storage::Manifest& manifest) const {
  std::optional<Clock> slowest;
  for (const Seat& seat : members_.workers()) {
    if (!seat.taken() || seat.is(rpc::MemberState::DEAD) || seat.joining()) continue;
    const Clock clock = manifest.workers[static_cast<std::uint32_t>(seat.who.id)].clock;
    slowest = slowest ? std::min(*slowest, clock) : clock;
  }
  for (const Seat& seat : members_.workers())
    if (seat.is(rpc::MemberState::DEAD) || (seat.joining() && seat.joined_later->before))
      manifest.workers[static_cast<std::uint32_t>(seat.who.id)] = {slowest.value_or(Clock(0)), {}};
}

CheckpointCore::Clocks JobCore::cut_clocks() const {
  CheckpointCore::Clocks clocks = checkpoint_.largest_applied();
  for (const Seat& seat : members_.workers()) {
    if (!seat.taken() || (seat.joining() && !seat.joined_later->before)) continue;
    std::int64_t& clock = clocks[seat.who.id];
    // What a server counted above the agreed end was an abandoned step, which changed nothing.
    if (seat.who.state == rpc::MemberState::DEAD) clock = std::min(clock, seat.who.final_clock);
    // At the end everything that was committed can be applied, also where it was not yet.
    if (ended_) clock = seat.who.final_clock;
    // Where they stand, all of it committed: their residuals are of that clock.
    if (!keeps_residuals()) continue;
    if (seat.live()) clock = seat.worker.clock;
    if (seat.who.state == rpc::MemberState::FINISHED) clock = seat.who.final_clock;
  }
  return clocks;
}

void JobCore::choose_checkpoint_or_end(TimePoint now) {
  using Purpose = CheckpointCore::Purpose;
  const bool saves = !setup_.checkpoint_dir.empty();
  if (phase_ == rpc::Phase::STOPPING) {
    if (ended_) enter(rpc::Phase::DONE, reason_);
  } else if (ended_) {
    if (saves)
      begin_checkpoint(Purpose::kFinal, now);
    else
      enter(rpc::Phase::DONE, "");
  } else if (stop_) {
    if (saves)
      begin_checkpoint(Purpose::kStop, now);
    else
      enter(rpc::Phase::STOPPING, *stop_);
  } else if (somebody_joins()) {
    // Servers hold back what may come before its first step: they could not reach a cut.
  } else if (requested_) {
    requested_ = false;
    begin_checkpoint(Purpose::kRequested, now);
  } else if (saves && checkpoint_due()) {
    begin_checkpoint(Purpose::kPeriodic, now);
  }
}

bool JobCore::checkpoint_due() const {
  if (next_checkpoint_ == 0) return false;
  const auto slowest = slowest_applied();
  return slowest && *slowest >= next_checkpoint_;
}

std::optional<std::int64_t> JobCore::slowest_applied() const {
  std::optional<std::int64_t> slowest;
  for (const Seat& worker : members_.workers()) {
    if (!worker.live()) continue;
    for (const Seat& server : members_.servers()) {
      const auto it = server.server.applied.find(worker.who.id);
      // What a server says of a joiner may still be about whoever had its place.
      const std::int64_t clock =
          std::max(it == server.server.applied.end() ? 0 : it->second, worker.who.first_clock);
      slowest = slowest ? std::min(*slowest, clock) : clock;
    }
  }
  return slowest;
}

void JobCore::begin_checkpoint(CheckpointCore::Purpose purpose, TimePoint now) {
  if (next_checkpoint_ > 0) {
    const auto every = static_cast<std::int64_t>(settings_.checkpoint_every);
    next_checkpoint_ =
        std::max(next_checkpoint_, (slowest_applied().value_or(0) / every + 1) * every);
  }
  checkpoint_.begin(purpose, keeps_residuals() && any_worker(rpc::MemberState::LIVE), now);
  touch();
}

void JobCore::committed(const storage::Manifest& manifest, const Status& status, TimePoint now) {
  latest_ = now;
  if (status) {
    committed_.push_back(info_of(manifest));
    say(fmt::format("checkpoint {} is whole", manifest.id));
    while (committed_.size() > std::max<std::size_t>(1, settings_.checkpoint_keep)) {
      effects_.forget.push_back(committed_.front().id);
      committed_.erase(committed_.begin());
    }
  }
  if (over() || checkpoint_.id() != manifest.id) return;
  if (!status) {
    abort_checkpoint(status.error().message);
  } else {
    const auto purpose = checkpoint_.purpose();
    close_outcome(manifest.id, {});
    checkpoint_.end();
    touch();
    if (purpose == CheckpointCore::Purpose::kFinal)
      enter(rpc::Phase::DONE, stop_.value_or(""));
    else if (stop_)
      enter(rpc::Phase::STOPPING, *stop_);
  }
  advance(now);
}

void JobCore::abort_checkpoint(const std::string& why) {
  const std::string text = fmt::format("checkpoint {} was given up: {}", checkpoint_.id(), why);
  const auto purpose = checkpoint_.purpose();
  close_outcome(checkpoint_.id(), fail(Code::kInternal, text));
  checkpoint_.end();
  touch();
  if (purpose == CheckpointCore::Purpose::kFinal || purpose == CheckpointCore::Purpose::kStop)
    fail_job(text);
  else
    say(text);
}

void JobCore::close_outcome(const std::string& id, Status status) {
  outcomes_.insert_or_assign(id, std::move(status));
  while (outcomes_.size() > kOutcomesKept) outcomes_.erase(outcomes_.begin());
}

void JobCore::enter(rpc::Phase::type phase, const std::string& reason) {
  phase_ = phase;
  reason_ = reason;
  if (over()) over_at_ = latest_;
  touch();
  say(fmt::format("the job is {}{}{}", rpc::_Phase_VALUES_TO_NAMES.at(phase),
                  reason.empty() ? "" : ": ", reason));
}

void JobCore::fail_job(const std::string& reason) {
  if (over()) return;
  if (checkpoint_.active()) {
    close_outcome(
        checkpoint_.id(),
        fail(Code::kInternal, fmt::format("checkpoint {} was given up: the job failed: {}",
                                          checkpoint_.id(), reason)));
    checkpoint_.end();
    effects_.commit.reset();
  }
  enter(rpc::Phase::FAILED, reason);
}

}  // namespace leeway::scheduler
