// Workers that come while the job trains, in the place of one that died or in one of their own.
//
//   join      a free place: JOINING, not yet in the view
//   declare   the model is the job's: in the view, unless a checkpoint is in the making (servers
//             stand still for that one, and for the next it can wait)
//   report    each server, when nothing of a predecessor is left there to be applied, says the
//             smallest clock of its live workers, and from then on applies no clock from there on
//             without the joiner. So the largest of what they say is a clock that none has passed.
//   LIVE      from that clock on, on every server
//   plan      when every server acts on that view: the joiner reaches out to them
//
// A step is known by worker and clock, so a joiner begins beyond every step that its predecessor
// may have begun: one may be half pushed, another abandoned before it.
#include <fmt/format.h>

#include <algorithm>

#include "scheduler/job_core.h"

namespace leeway::scheduler {
namespace {

using rpc::MemberState;

constexpr std::int64_t kBegunByPredecessor = 2;

std::string numbers(std::uint32_t count) {
  return count == 1 ? "worker 0" : fmt::format("workers 0 to {}", count - 1);
}

}  // namespace

Result<std::int32_t> JobCore::free_place(const rpc::RegisterRequest& request) const {
  const auto& seats = members_.workers();
  const auto find = [&](auto good) { return std::find_if(seats.begin(), seats.end(), good); };
  auto seat = find([&](const Seat& s) { return Membership::holds(s, request); });
  // Before the start only those places count that the job waits for.
  const auto last = phase_ == rpc::Phase::GATHERING ? setup_.workers : places();
  const auto free = [&](const Seat& s) {
    return s.who.id < static_cast<std::int32_t>(last) && (!s.taken() || s.is(MemberState::DEAD));
  };
  if (seat == seats.end()) seat = find([&](const Seat& s) { return free(s) && s.taken(); });
  if (seat == seats.end()) seat = find(free);
  if (seat != seats.end()) return seat->who.id;
  if (any_worker(MemberState::RESOLVING))
    return fail(Code::kUnavailable, "a worker died and servers still settle its last step");
  return fail(Code::kRefused,
              fmt::format("the job is full: {} are there or done; --max-workers makes room for "
                          "more",
                          numbers(last)));
}

Status JobCore::may_join(Seat& seat, rpc::Role::type role, TimePoint now) {
  const std::string who = fmt::format("{} {}", Membership::role_name(role), seat.who.id);
  const auto late = [&](const std::string& why) {
    return fail(Code::kRefused, fmt::format("{} comes too late: {}", who, why));
  };
  const auto later = [&](std::string why) { return fail(Code::kUnavailable, std::move(why)); };
  const bool server = role == rpc::Role::SERVER;
  if (phase_ == rpc::Phase::GATHERING) {
    if (server || seat.who.id < static_cast<std::int32_t>(setup_.workers)) return {};
    return later(fmt::format("{} may join when the job trains, which {} begin", who,
                             numbers(setup_.workers)));
  }
  if (phase_ == rpc::Phase::PLANNED && !server)
    return later(
        fmt::format("{} comes too late for the start: the job is PLANNED and takes "
                    "joiners when it trains",
                    who));
  if (server || phase_ != rpc::Phase::RUNNING)
    return late(
        fmt::format("the job is {}{}{}", phase_name(), reason_.empty() ? "" : ": ", reason_));
  if (stop_) return late("the job is stopping: " + *stop_);
  if (ended_) return late("everybody has done all steps");
  if (!seat.taken() || seat.is(MemberState::DEAD)) return {};
  if (seat.is(MemberState::FINISHED)) return late(who + " has done all its steps");
  if (seat.is(MemberState::RESOLVING))
    return later(
        fmt::format("servers still settle the last step of {}", Membership::describe(seat, role)));
  // A supervisor that starts a worker anew is quicker than our patience with a silent one.
  const std::string holder = Membership::describe(seat, role);
  if (!seat.claim || now - seat.claim->last > settings_.member_timeout_ms) seat.claim = {now, now};
  seat.claim->last = now;
  if (seat.heard > seat.claim->first)
    return fail(
        Code::kRefused,
        fmt::format("{} is here already and alive; give each process an id of its own", holder));
  return later(
      fmt::format("{} was heard of {:.1f} s ago: its place is free when it has been "
                  "silent for member_timeout_ms = {}",
                  holder, seconds_between(seat.heard, now), settings_.member_timeout_ms.count()));
}

void JobCore::begin_join(Seat& seat, const rpc::RegisterRequest& request, TimePoint now) {
  Seat::Joining joining;
  if (seat.taken()) joining.before = std::make_shared<const Seat>(seat);
  Membership::vacate(seat);
  if (!members_.join(request, now)) return;
  seat.who.state = MemberState::JOINING;
  seat.joined_later = std::move(joining);
  touch();
}

bool JobCore::servers_know(std::int64_t epoch) const {
  return std::all_of(members_.servers().begin(), members_.servers().end(),
                     [&](const Seat& server) { return server.server.epoch >= epoch; });
}

bool JobCore::somebody_joins() const {
  return std::any_of(members_.workers().begin(), members_.workers().end(),
                     [](const Seat& seat) { return seat.joining() && seat.joined_later->told; });
}

void JobCore::advance_joins() {
  if (phase_ != rpc::Phase::RUNNING || stop_) return;
  for (Seat& seat : members_.workers()) {
    if (!seat.joining() || !seat.declared) continue;
    Seat::Joining& joining = *seat.joined_later;
    if (!joining.told) {
      if (checkpoint_.active()) continue;
      touch();
      joining.told = epoch_;
      continue;
    }
    std::int64_t clock = first_clock_at_least(seat);
    if (const auto server = refusing_server(seat)) {
      forget_joiner(seat,
                    fmt::format("server {} has no way to it (--fabric and --bind as the job's), or "
                                "no memory for it: workers that died in the middle of a transfer "
                                "took some with them",
                                *server));
      continue;
    }
    const bool all =
        std::all_of(members_.servers().begin(), members_.servers().end(), [&](const Seat& server) {
          const auto it = server.server.joining.find(seat.who.id);
          if (server.server.epoch < *joining.told || it == server.server.joining.end())
            return false;
          clock = std::max(clock, it->second);
          return true;
        });
    if (all) take_in(seat, clock);
  }
}

std::optional<std::int32_t> JobCore::refusing_server(const Seat& seat) const {
  for (const Seat& server : members_.servers()) {
    const auto it = server.server.joining.find(seat.who.id);
    if (server.server.epoch >= *seat.joined_later->told && it != server.server.joining.end() &&
        it->second < 0)
      return server.who.id;
  }
  return std::nullopt;
}

std::int64_t JobCore::first_clock_at_least(const Seat& seat) const {
  if (const auto& before = seat.joined_later->before)
    return before->who.final_clock + kBegunByPredecessor;
  const auto restored = plan_.progress.find(seat.who.id);
  return restored == plan_.progress.end() ? 0 : restored->second.clock;
}

void JobCore::take_in(Seat& seat, std::int64_t clock) {
  Seat::Joining& joining = *seat.joined_later;
  seat.who.state = MemberState::LIVE;
  seat.who.first_clock = seat.worker.clock = clock;
  touch();
  joining.taken_in = epoch_;
  std::string place = "as one worker more";
  if (const auto before = std::exchange(joining.before, nullptr)) {
    place = fmt::format("in the place of the one that ended at clock {} ({})",
                        before->who.final_clock, before->error);
    const rpc::WorkerReport& last = before->worker;
    replaced_.clock += before->who.final_clock - first_clock(*before);
    replaced_.samples += last.samples;
    replaced_.skipped_steps += last.skipped_steps;
    replaced_.staleness_violations += last.staleness_violations;
    auto& sum = replaced_.staleness_histogram;
    sum.resize(std::max(sum.size(), last.staleness_histogram.size()));
    for (std::size_t i = 0; i < last.staleness_histogram.size(); ++i)
      sum[i] += last.staleness_histogram[i];
  }
  say(fmt::format("{} joins at clock {}, {}", Membership::describe(seat, rpc::Role::WORKER), clock,
                  place));
}

// Where a joiner stands, for itself.
Status JobCore::joined(const Seat& seat) const {
  const auto later = [&](std::string_view what) {
    return fail(Code::kUnavailable, fmt::format("worker {} joins: {}", seat.who.id, what));
  };
  const Seat::Joining& joining = *seat.joined_later;
  if (!joining.told && checkpoint_.active())
    return later(fmt::format("checkpoint {} comes first", checkpoint_.id()));
  if (!joining.taken_in) return later("servers agree on its first clock");
  if (!servers_know(*joining.taken_in)) return later("servers take it in");
  return {};
}

void JobCore::forget_joiner(Seat& seat, const std::string& why) {
  const std::string who = Membership::describe(seat, rpc::Role::WORKER);
  say(fmt::format("{} did not join: {}", who, why));
  members_.forget(seat, why);
  touch();
}

void JobCore::forget_joiners(const std::string& why) {
  for (Seat& seat : members_.workers())
    if (seat.joining()) forget_joiner(seat, why);
}

void JobCore::pause_or_go_on(TimePoint now) {
  std::uint32_t there = 0;
  for (const Seat& seat : members_.workers()) there += seat.live() ? 1 : 0;
  // When the first are through, the others end with fewer.
  const bool pause = phase_ == rpc::Phase::RUNNING && !stop_ && there < settings_.min_workers &&
                     !any_worker(MemberState::FINISHED);
  if (pause == paused_since_.has_value()) return;
  paused_since_ = pause ? std::optional(now) : std::nullopt;
  touch();
  say(pause ? fmt::format("{} of at least {} workers are left (min_workers): waiting up to "
                          "rejoin_timeout_ms = {} for others to join",
                          there, settings_.min_workers, settings_.rejoin_timeout_ms.count())
            : "training goes on");
}

}  // namespace leeway::scheduler
