#include "scheduler/launcher/supervisor_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>

namespace leeway::launcher {
namespace {

constexpr milliseconds kListenPatience{30000};    // a scheduler opens a database and a port
constexpr milliseconds kJudgePatience{2000};      // for the scheduler's word on an ending
constexpr milliseconds kFailurePatience{3000};    // members leave by themselves
constexpr milliseconds kDonePatience{10000};      // servers leave by themselves
constexpr milliseconds kClosePatience{2000};      // the scheduler leaves when asked
constexpr milliseconds kKillPatience{1000};       // between SIGTERM and SIGKILL
constexpr milliseconds kInterruptPatience{1200};  // graceful part of the two seconds of a Ctrl-C
constexpr milliseconds kInterruptKillPatience{400};
constexpr milliseconds kCheckpointSay{1000};
constexpr milliseconds kCheckpointPatience{60000};
constexpr milliseconds kSilencePatience{2000};  // of it, without any status

Effect tell_lost(const Member& member, std::string how, bool fails_job) {
  return {.kind = Effect::Kind::kTellLost,
          .text = std::move(how),
          .member = member,
          .fails_job = fails_job};
}
Effect stop_job(std::string reason) {
  return {.kind = Effect::Kind::kStopJob, .text = std::move(reason)};
}
Effect say(std::string text) { return {.kind = Effect::Kind::kSay, .text = std::move(text)}; }
Effect warn(std::string text) { return {.kind = Effect::Kind::kWarn, .text = std::move(text)}; }

std::string with_words(const std::string& why, const std::string& words) {
  return words.empty() ? why : why + ": " + words;
}

// The member that a reason of the scheduler's begins with: "worker 1 (node7, pid 4711): ...".
std::string culprit(const std::string& reason) {
  for (const char* role : {"worker ", "server "}) {
    if (!reason.starts_with(role)) continue;
    const auto end = std::min(reason.find_first_not_of("0123456789", 7), reason.size());
    if (end != 7) return fmt::format("{}.{}", reason.substr(0, 6), reason.substr(7, end - 7));
  }
  return "scheduler";
}

}  // namespace

SupervisorCore::SupervisorCore(Config config, TimePoint now)
    : config_(std::move(config)), start_(now), live_{Member{}} {}

Effects SupervisorCore::scheduler_listens(TimePoint) {
  if (listening_ || failure_ || interrupted_at_) return {};
  listening_ = true;
  for (std::uint32_t i = 0; i < config_.servers; ++i)
    live_.insert({Role::kServer, static_cast<int>(i)});
  for (std::uint32_t i = 0; i < config_.workers; ++i)
    live_.insert({Role::kWorker, static_cast<int>(i)});
  return {Effect{.kind = Effect::Kind::kStartMembers}};
}

Effects SupervisorCore::ended(TimePoint now, const Member& member, ProcessEnd end,
                              const std::string& words) {
  Effects effects;
  live_.erase(member);
  ends_[member] = end;
  if (!killing_ && !interrupted_at_) {
    if (failure_) {
      root_cause(member, end);
      add_words(member, words);
    } else {
      switch (member.role) {
        case Role::kScheduler:
          scheduler_ended(now, end, words);
          break;
        case Role::kServer:
          server_ended(now, member, end, words, effects);
          break;
        case Role::kWorker:
          worker_ended(now, member, end, words, effects);
          break;
      }
    }
    if (failure_ && !terminate_at_)
      terminate_at_ = scheduler_alive() ? now + kFailurePatience : now;
  }
  // Without the scheduler there is nobody who could tell the others to leave.
  if (member.role == Role::kScheduler && !live_.empty() && !killing_) terminate_at_ = now;
  close_if_alone(now, effects);
  return effects;
}

void SupervisorCore::scheduler_ended(TimePoint now, ProcessEnd end, const std::string& words) {
  if (!suspects_.empty()) return judge(suspects_.front());
  const bool last = live_.empty();
  if (end.clean() && (last || last_.phase == Phase::kDone)) return;
  if (last_.phase == Phase::kFailed) return fail(culprit(last_.reason), last_.reason, now, false);
  std::string why = fmt::format("scheduler {}", to_string(end));
  if (end.clean()) why += " before the job was done";
  fail("scheduler", with_words(std::move(why), words), now, end.by_signal);
}

void SupervisorCore::server_ended(TimePoint now, const Member& member, ProcessEnd end,
                                  const std::string& words, Effects& effects) {
  if (end.clean() && last_.phase == Phase::kDone) return;
  const std::string how = with_words(to_string(end), end.by_signal ? "" : words);
  if (!end.clean()) effects.push_back(tell_lost(member, how, true));
  suspect({.member = member,
           .why = fmt::format("{} {}{}", to_string(member), how,
                              end.clean() ? " before the job was done" : ""),
           .at = now,
           .restartable = end.by_signal,
           .ended_well = end.clean()},
          effects);
}

void SupervisorCore::worker_ended(TimePoint now, const Member& member, ProcessEnd end,
                                  const std::string& words, Effects& effects) {
  const bool any_left = first_live(Role::kWorker).has_value();
  // The job has gone on without it already: what it says when it wakes up is no news.
  const bool known_dead = declared_dead(member) || replaced(member);
  if (known_dead || vanished(end)) {
    if (!known_dead) effects.push_back(tell_lost(member, to_string(end), false));
    lost_.insert(member);
    const bool any_kept = std::any_of(ends_.begin(), ends_.end(), [this](const auto& entry) {
      return entry.first.role == Role::kWorker && !lost_.contains(entry.first);
    });
    if (any_left || any_kept || others_train() || config_.waits_for_joiners) {
      const bool trains = last_.phase == Phase::kRunning || last_.phase == Phase::kStopping;
      effects.push_back(
          warn(fmt::format("{} {}{}{}", to_string(member), to_string(end),
                           known_dead ? " after it was declared dead" : "",
                           any_left && trains ? "; the others go on without it" : "")));
    } else {
      suspect({.member = member,
               .why = fmt::format("no worker is left: {} {}", to_string(member), to_string(end)),
               .at = now,
               .restartable = true},
              effects);
    }
    return;
  }
  if (end.clean() && finished(member)) return;
  const std::string how = with_words(to_string(end), end.by_signal ? "" : words);
  if (!end.clean()) effects.push_back(tell_lost(member, how, true));
  suspect({.member = member,
           .why = fmt::format("{} {}", to_string(member),
                              end.clean() ? "ended without finishing its session" : how),
           .at = now,
           .ended_well = end.clean()},
          effects);
}

bool SupervisorCore::finished(const Member& member) const {
  const MemberSnapshot* found = last_.find(member);
  return last_.phase == Phase::kDone || (found != nullptr && found->state == "FINISHED");
}

bool SupervisorCore::replaced(const Member& member) const {
  const MemberSnapshot* found = last_.find(member);
  const auto first = ours_.find(member);
  return found != nullptr && first != ours_.end() && found->incarnation > first->second;
}

bool SupervisorCore::others_train() const {
  return std::any_of(last_.workers.begin(), last_.workers.end(), [this](const auto& one) {
    const bool ours = one.member.id < static_cast<int>(config_.workers) && !replaced(one.member);
    return !ours && (one.state == "LIVE" || one.state == "JOINING" || one.state == "FINISHED");
  });
}

bool SupervisorCore::declared_dead(const Member& member) const {
  const MemberSnapshot* found = last_.find(member);
  return found != nullptr && (found->state == "DEAD" || found->state == "RESOLVING");
}

void SupervisorCore::suspect(Suspect suspect, Effects& effects) {
  suspects_.push_back(std::move(suspect));
  if (!scheduler_alive()) {
    judge(suspects_.front());
  } else {
    effects.push_back(Effect{.kind = Effect::Kind::kAskStatus});
  }
}

void SupervisorCore::judge(const Suspect& suspect) {
  fail(to_string(suspect.member), suspect.why, suspect.at, suspect.restartable);
  suspects_.clear();
}

void SupervisorCore::fail(std::string who, std::string reason, TimePoint at, bool restartable) {
  if (failure_ || interrupted_at_) return;
  failure_ = Failure{.who = std::move(who),
                     .reason = std::move(reason),
                     .seconds = seconds_between(start_, at),
                     .step = std::nullopt,
                     .restartable = restartable};
  for (const auto* list : {&last_.workers, &last_.servers})
    for (const MemberSnapshot& one : *list)
      if (to_string(one.member) == failure_->who && one.worker) failure_->step = one.worker->clock;
  if (failure_->step) return;
  for (const MemberSnapshot& one : last_.workers)
    if (one.worker) failure_->step = std::max(failure_->step.value_or(0), one.worker->clock);
}

// The others may notice a killed server before we do: what they then say is a consequence.
void SupervisorCore::root_cause(const Member& member, ProcessEnd end) {
  if (!failure_from_scheduler_ || !end.by_signal) return;
  if (member.role == Role::kWorker && vanished(end)) return;
  failure_from_scheduler_ = false;
  failure_->who = to_string(member);
  failure_->reason = fmt::format("{} {}", to_string(member), to_string(end));
  failure_->restartable = member.role != Role::kWorker;
}

// What the culprit said itself, where the reason does not hold it ("ended by an exception").
void SupervisorCore::add_words(const Member& member, const std::string& words) {
  if (words.empty() || to_string(member) != failure_->who) return;
  std::string& reason = failure_->reason;
  const auto colon = reason.find(": ");
  const std::string what = colon == std::string::npos ? reason : reason.substr(colon + 2);
  if (reason.find(words) == std::string::npos && words.find(what) == std::string::npos)
    reason += "; it said: " + words;
}

Effects SupervisorCore::stopped(TimePoint now, const Member& member, int signal) {
  const auto pauses = config_.pauses.find(member.id);
  if (member.role == Role::kWorker && pauses != config_.pauses.end()) {
    std::size_t& taken = pauses_taken_[member.id];
    if (taken < pauses->second.size()) {
      const double seconds = pauses->second[taken++];
      resume_at_.emplace_back(now + std::chrono::milliseconds(static_cast<long>(seconds * 1000)),
                              member);
      return {warn(fmt::format("{} is paused for {} s (--inject)", to_string(member), seconds))};
    }
  }
  return {warn(fmt::format("{} was stopped by {}; it goes on at a SIGCONT", to_string(member),
                           signal_name(signal)))};
}

Effects SupervisorCore::status(TimePoint now, const JobSnapshot& snapshot) {
  Effects effects;
  last_ = snapshot;
  for (const MemberSnapshot& one : last_.workers)
    if (one.incarnation > 0) ours_.try_emplace(one.member, one.incarnation);
  answered_at_ = now;
  if (snapshot.phase == Phase::kDone && !done_at_) done_at_ = now;
  if (interrupted_at_ && checkpoint_awaited_ && snapshot.phase != Phase::kRunning) {
    // The checkpoint is there (or failed): the rest has its two seconds from here on.
    checkpoint_awaited_ = false;
    if (!killing_) terminate_at_ = now + kInterruptPatience;
  }
  if (!failure_ && !interrupted_at_) {
    if (snapshot.phase == Phase::kFailed) {
      // What made it fail is what we saw end first, in the scheduler's words.
      const std::string fallback = suspects_.empty() ? "the job failed" : suspects_.front().why;
      const std::string reason = snapshot.reason.empty() ? fallback : snapshot.reason;
      std::string who = culprit(reason);
      bool restartable = false;
      for (const Suspect& one : suspects_) restartable |= one.restartable;
      if (who == "scheduler" && !suspects_.empty()) who = to_string(suspects_.front().member);
      failure_from_scheduler_ = suspects_.empty();
      fail(std::move(who), reason, suspects_.empty() ? now : suspects_.front().at, restartable);
      suspects_.clear();
      if (!terminate_at_) terminate_at_ = now + kFailurePatience;
    } else {
      // Those that ended well are judged by a status asked after they ended.
      for (auto it = suspects_.begin(); it != suspects_.end();) {
        if (!it->ended_well || snapshot.asked_at < it->at) {
          ++it;
          continue;
        }
        const bool done = it->member.role == Role::kWorker ? finished(it->member)
                                                           : snapshot.phase == Phase::kDone ||
                                                                 snapshot.phase == Phase::kStopping;
        if (done) {
          it = suspects_.erase(it);
          continue;
        }
        it->ended_well = false;  // it is a failure; the scheduler learns of it and says so
        effects.push_back(tell_lost(it->member, "ended without finishing", true));
        effects.push_back(Effect{.kind = Effect::Kind::kAskStatus});
        ++it;
      }
    }
  }
  close_if_alone(now, effects);
  return effects;
}

// The scheduler waits ten seconds for people who ask what happened; we have asked. Its exit is
// requested once the others are gone and its last status is here.
void SupervisorCore::close_if_alone(TimePoint now, Effects& effects) {
  if (!only_scheduler_left() || !listening_) return;
  if (!alone_at_) {
    alone_at_ = now;
    effects.push_back(Effect{.kind = Effect::Kind::kAskStatus});
    return;
  }
  const bool terminal = last_.phase == Phase::kDone || last_.phase == Phase::kFailed;
  if (stop_sent_ || !terminal || last_.asked_at < *alone_at_ || !suspects_.empty()) return;
  stop_sent_ = true;
  effects.push_back(stop_job("everybody has left"));
  if (!killing_)
    terminate_at_ = std::min(terminate_at_.value_or(TimePoint::max()), now + kClosePatience);
}

TimePoint SupervisorCore::alone_deadline() const {
  return *alone_at_ + (failure_ || interrupted_at_ ? kClosePatience : kDonePatience);
}

Effects SupervisorCore::interrupted(TimePoint now) {
  Effects effects;
  if (interrupted_at_ || (failure_ && killing_)) {
    if (interrupted_twice_) {
      signal_all(SIGKILL, effects);
      return effects;
    }
    interrupted_twice_ = true;
    effects.push_back(warn("interrupted again: ending everything now"));
    begin_killing(now, kInterruptKillPatience, effects);
    return effects;
  }
  if (failure_) {  // it ends anyhow: no patience any more
    begin_killing(now, kInterruptKillPatience, effects);
    return effects;
  }
  interrupted_at_ = now;
  suspects_.clear();
  if (!listening_ || !scheduler_alive()) {
    begin_killing(now, kInterruptKillPatience, effects);
    return effects;
  }
  checkpoint_awaited_ = config_.checkpoints && last_.phase == Phase::kRunning &&
                        now < answered_at_ + kSilencePatience;
  effects.push_back(say("interrupted: stopping the job (Ctrl-C again ends it at once)"));
  effects.push_back(stop_job("interrupted"));
  effects.push_back(Effect{.kind = Effect::Kind::kAskStatus});
  terminate_at_ = now + (checkpoint_awaited_ ? kCheckpointPatience : kInterruptPatience);
  return effects;
}

Effects SupervisorCore::tick(TimePoint now) {
  Effects effects;
  for (auto it = resume_at_.begin(); it != resume_at_.end();) {
    if (now < it->first) {
      ++it;
      continue;
    }
    if (alive(it->second)) {
      effects.push_back(Effect{.kind = Effect::Kind::kResume, .member = it->second});
      effects.push_back(say(fmt::format("{} goes on", to_string(it->second))));
    }
    it = resume_at_.erase(it);
  }
  if (checkpoint_awaited_ && now >= answered_at_ + kSilencePatience) {
    checkpoint_awaited_ = false;
    effects.push_back(warn("the scheduler does not answer: not waiting for a checkpoint"));
    terminate_at_ = now;
  }
  if (checkpoint_awaited_ && !checkpoint_said_ && now >= *interrupted_at_ + kCheckpointSay) {
    checkpoint_said_ = true;
    effects.push_back(say("a checkpoint is being written; waiting for it up to 60 s"));
  }
  if (!listening_ && !killing_ && !failure_ && !interrupted_at_ &&
      now >= start_ + kListenPatience) {
    fail("scheduler",
         fmt::format("scheduler did not serve within {} s", kListenPatience.count() / 1000), now,
         false);
    terminate_at_ = now;
  }
  if (!suspects_.empty() && now >= suspects_.front().at + kJudgePatience) {
    judge(suspects_.front());
    if (!terminate_at_) terminate_at_ = now + kFailurePatience;
  }
  if (done_at_ && !failure_ && !killing_ && !interrupted_at_ && now >= *done_at_ + kDonePatience) {
    if (const auto server = first_live(Role::kServer)) {
      fail(to_string(*server),
           fmt::format("{} did not end within {} s after the job was done", to_string(*server),
                       kDonePatience.count() / 1000),
           now, false);
      terminate_at_ = now;
    }
  }
  if (alone_at_ && !stop_sent_ && !killing_ && now >= alone_deadline()) {
    fail("scheduler", "scheduler does not answer although everybody else has left", now, false);
    terminate_at_ = now;
  }
  if (terminate_at_ && now >= *terminate_at_ && !killing_) {
    if (!only_scheduler_left() && !live_.empty() && scheduler_alive())
      effects.push_back(
          warn(fmt::format("{} did not leave in time: ending it by force", names_of_live())));
    begin_killing(now, interrupted_at_ ? kInterruptKillPatience : kKillPatience, effects);
  }
  if (kill_at_ && now >= *kill_at_) {
    kill_at_.reset();
    signal_all(SIGKILL, effects);
  }
  return effects;
}

void SupervisorCore::begin_killing(TimePoint now, milliseconds patience, Effects& effects) {
  killing_ = true;
  terminate_at_.reset();
  checkpoint_awaited_ = false;
  kill_at_ = now + patience;
  signal_all(SIGTERM, effects);
}

void SupervisorCore::signal_all(int signal, Effects& effects) const {
  for (const Member& member : live_)
    effects.push_back(Effect{.kind = Effect::Kind::kSignal, .member = member, .signal = signal});
}

TimePoint SupervisorCore::next_deadline() const {
  TimePoint next = TimePoint::max();
  const auto consider = [&](TimePoint at) { next = std::min(next, at); };
  for (const auto& [at, member] : resume_at_) consider(at);
  if (checkpoint_awaited_) consider(answered_at_ + kSilencePatience);
  if (checkpoint_awaited_ && !checkpoint_said_) consider(*interrupted_at_ + kCheckpointSay);
  if (kill_at_) consider(*kill_at_);
  if (killing_) return next;
  if (!listening_ && !failure_ && !interrupted_at_) consider(start_ + kListenPatience);
  if (!suspects_.empty()) consider(suspects_.front().at + kJudgePatience);
  if (done_at_ && !failure_ && !interrupted_at_ && first_live(Role::kServer))
    consider(*done_at_ + kDonePatience);
  if (alone_at_ && !stop_sent_) consider(alone_deadline());
  if (terminate_at_) consider(*terminate_at_);
  return next;
}

std::optional<Member> SupervisorCore::first_live(Role role) const {
  const auto it = std::find_if(live_.begin(), live_.end(),
                               [role](const Member& member) { return member.role == role; });
  return it == live_.end() ? std::nullopt : std::optional(*it);
}

std::string SupervisorCore::names_of_live() const {
  std::string names;
  for (const Member& member : live_)
    if (member.role != Role::kScheduler) names += (names.empty() ? "" : ", ") + to_string(member);
  return names;
}

}  // namespace leeway::launcher
