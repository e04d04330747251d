// The half of the consistency core that moves things on: updates, the checkpoint's cut, admissions,
// answers, and the scheduler's word about workers that come and end.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "server/adaptive_bound.h"
#include "server/consistency.h"

namespace leeway::server {
namespace {

// Steps in one pass; more would only delay the pulls that wait for the first.
constexpr std::size_t kMostSums = 8;
// Steps of a worker that have ended and are not applied, beyond the slabs there are: abandoned ones
// have no slab, and would fill the memory.
constexpr std::uint64_t kMostWithoutSlab = 16;

// The step as a part of the update that follows so many.
Contribution contribution(StepId id, EndedStep& step, std::uint64_t updates) {
  return {id, *step.slab, std::move(step.scales), updates - step.based_on, step.factor};
}

}  // namespace

void Consistency::advance(Effects& effects) {
  expect_joiners();
  pump_updates(effects);
  admit(effects);
  fold_late(effects);
  offer_initial(effects);
  answer_pulls(effects);
}

// --- updates -----------------------------------------------------------------------------------

void Consistency::pump_updates(Effects& effects) {
  while (!update_runs_ && initialized_) {
    if (hold_.reached(workers_)) {
      TakeSnapshot snapshot{.id = hold_.id()};
      for (const auto& [id, worker] : workers_)
        snapshot.workers[id] = {worker.applied, worker.state};
      effects.emplace_back(std::move(snapshot));
      hold_.snapshot_taken();
    }
    if (config_.per_clock ? !next_by_clock(effects) : !next_by_push(effects)) return;
  }
}

void Consistency::count_applied(WorkerState& worker) {
  EndedStep& step = worker.steps.front();
  if (step.slab) slabs_.release(*step.slab);
  if (!step.worker_state.empty()) worker.state = std::move(step.worker_state);
  worker.applied = std::max(worker.applied, step.clock.next());
  // An abandoned step may have been taken back while its clock was in the update.
  worker.applied = std::min(worker.applied, worker.ended);
  worker.steps.pop_front();
}

// Both return true when something was counted at once and there may be more to do.
//
// All that waits goes into one pass over memory, each step still an update of its own.
bool Consistency::next_by_push(Effects& effects) {
  Apply apply;
  std::erase_if(queue_, [&](const StepId& id) {
    WorkerState& worker = workers_.at(id.worker);
    if (apply.sums.size() == kMostSums || !hold_.allows(worker, id.worker, id.clock)) return false;
    EndedStep& step = worker.steps[worker.in_update++];
    applying_.push_back(id);
    if (step.committed && step.slab)
      apply.sums.push_back({{contribution(id, step, updates_ + apply.sums.size())}, 1.0f});
    return true;
  });
  if (applying_.empty()) return false;
  if (apply.sums.empty()) {
    finish_update();
    return true;
  }
  start_update(std::move(apply), effects);
  return false;
}

void Consistency::start_update(Apply apply, Effects& effects) {
  update_runs_ = true;
  updates_ += apply.sums.size();
  norms_.begin(apply.clock);
  effects.emplace_back(std::move(apply));
}

bool Consistency::next_by_clock(Effects& effects) {
  if (waits_for_joiner()) return false;
  const ClockRule::Decision decision = clock_rule_.decide(workers_, hold_, clock_, now_);
  switch (decision.what) {
    case ClockRule::Decision::What::kWait:
      if (decision.wake && decision.wake != wake_) {
        wake_ = decision.wake;
        effects.emplace_back(WakeAt{*wake_});
      }
      return false;
    case ClockRule::Decision::What::kMove:
      clock_ = decision.clock;
      return true;
    case ClockRule::Decision::What::kApply:
      break;
  }
  Sum sum;
  take_clock(sum);
  if (sum.contributions.empty() && sum.late == 0) {
    finish_update();  // no gradient at all: the clock advances, versions stay
    return true;
  }
  start_update({{std::move(sum)}, clock_}, effects);
  return false;
}

// What the update of clock_ holds: the steps of the clock and the late ones, in worker order,
// weighted by their samples. (By the parts that these are of their sum: with equal samples every
// weight is 1.)
void Consistency::take_clock(Sum& sum) {
  std::vector<std::uint64_t> samples;
  closes_clock_ = !(clock_rule_.with_quorum() && hold_.cutting());
  for (auto& [id, worker] : workers_) {
    worker.in_update = 0;
    for (EndedStep& step : worker.steps) {
      if (step.clock > clock_) break;
      if (clock_rule_.with_quorum() && !hold_.allows(worker, id, step.clock)) break;
      closes_clock_ |= step.clock == clock_;
      ++worker.in_update;
      applying_.push_back({id, step.clock});
      if (!step.committed || !step.slab) continue;
      if (config_.bugs.late_lost && step.clock < clock_) continue;
      sum.contributions.push_back(contribution({id, step.clock}, step, updates_));
      samples.push_back(step.samples);
    }
  }
  std::uint64_t unit = late_samples_;
  for (const std::uint64_t n : samples) unit = std::gcd(unit, n);
  if (unit == 0) return;
  const std::uint64_t total = std::accumulate(samples.begin(), samples.end(), late_samples_);
  for (std::size_t i = 0; i < samples.size(); ++i)
    sum.contributions[i].factor *= static_cast<float>(samples[i] / unit);
  sum.weight = 1.0f / static_cast<float>(total / unit);
  // The late sum is of samples, not of units.
  if (late_samples_ != 0) sum.late = 1.0f / static_cast<float>(unit);
  late_samples_ = 0;
}

// When somebody waits for a slab, or to join, those of late steps are made free.
void Consistency::fold_late(Effects& effects) {
  if (update_runs_ || !clock_rule_.with_quorum()) return;
  if (!slabs_.starved() && newcomers().waiting == 0) return;
  FoldLate fold{.first = late_samples_ == 0};
  for (auto& [id, worker] : workers_)
    for (EndedStep& step : worker.steps) {
      if (step.clock >= clock_ || !hold_.allows(worker, id, step.clock)) break;
      if (step.folded) continue;
      applying_.push_back({id, step.clock});
      if (!step.committed || !step.slab) continue;
      fold.contributions.push_back(contribution({id, step.clock}, step, updates_));
      fold.contributions.back().factor *= static_cast<float>(step.samples);
      late_samples_ += step.samples;
    }
  if (applying_.empty()) return;
  update_runs_ = folding_ = true;
  if (fold.contributions.empty()) return finish_update();
  effects.emplace_back(std::move(fold));
}

// Steps of lower clocks join the next one, and may be folded.
Clock Consistency::late_before() const { return clock_rule_.with_quorum() ? clock_ : Clock(0); }

Clock Consistency::clocks_upcoming() const {
  return update_runs_ && closes_clock_ ? clock_.next() : clock_;
}

void Consistency::finish_update() {
  update_runs_ = false;
  norms_.end();
  for (const StepId& id : applying_) {
    WorkerState& worker = workers_.at(id.worker);
    worker.in_update = 0;
    if (!folding_) {
      count_applied(worker);
      continue;
    }
    EndedStep& step = *std::ranges::find(worker.steps, id.clock, &EndedStep::clock);
    step.folded = !config_.bugs.late_twice;
    if (step.slab && step.folded) {
      slabs_.release(*step.slab);
      step.slab.reset();
    }
  }
  applying_.clear();
  folding_ = false;
  if (closes_clock_) clock_ = clock_.next();
  closes_clock_ = false;
}

Effects Consistency::apply_done(TimePoint now) {
  Effects effects;
  now_ = now;
  finish_update();
  advance(effects);
  return effects;
}

Effects Consistency::tick(TimePoint now) {
  Effects effects;
  now_ = now;
  // Another that is set for later still comes: asking anew would double it.
  if (wake_ && *wake_ <= now) wake_.reset();
  norms_.tick(now, effects);
  advance(effects);
  return effects;
}

// --- admissions and answers ----------------------------------------------------------------------

void Consistency::admit(Effects& effects) {
  while (const auto admitted = slabs_.admit(workers_, late_before(), newcomers())) {
    const auto [id, slab] = *admitted;
    OpenStep& open = *workers_.at(id).open;
    open.slab = slab;
    for (LocalPartition p = 0; p < open.payloads.size(); ++p)
      if (open.payloads[p] == OpenStep::Payload::kOffered)
        start_read({id, open.clock}, open, p, false, effects);
  }
}

void Consistency::offer_initial(Effects& effects) {
  if (initialized_ || publishing_initial_ || !initializer_) return;
  const auto found = workers_.find(*initializer_);
  if (found == workers_.end() || !found->second.live() || !found->second.initial) return;
  OpenStep& open = *found->second.initial;
  // Reads for an initializer that died may still write into the masters: let them end first.
  if (initial_reading_ != open.reading) return;
  for (LocalPartition p = 0; p < open.payloads.size(); ++p)
    if (open.payloads[p] == OpenStep::Payload::kOffered)
      start_read({found->first, Clock(0)}, open, p, true, effects);
}

// staleness = auto: a pull that asks for what is promised gets the bound in force.
void Consistency::adapt_bound(WorkerId id, WorkerState& worker) {
  PendingPull& pull = *worker.pull;
  if (!config_.staleness.low || pull.asked != config_.staleness.value) return;
  if ((config_.per_clock ? worker.ended : worker.upcoming()) < pull.clock) return;
  const Clock slowest = config_.per_clock ? clocks_upcoming() : Gate::slowest(workers_);
  const std::uint64_t lead =
      pull.clock > slowest ? pull.clock.value() - slowest.value() : std::uint64_t{0};
  // Chosen once a pull, when it comes to the bound; whoever is back within LOW has LOW again.
  if (!pull.adapted || lead <= *config_.staleness.low)
    worker.bound = choose_bound(workers_, id, lead, worker.bound, config_.staleness, now_);
  pull.adapted = true;
  pull.bound = worker.bound;
}

std::uint64_t Consistency::most_ended() const noexcept { return config_.slabs + kMostWithoutSlab; }

// Its next weights wait, whatever the bound, for the update of a clock that others have not ended:
// these are not held up by this, so the clock comes.
bool Consistency::far_ahead(const WorkerState& worker) const noexcept {
  return config_.per_clock && worker.ended.value() >= clocks_upcoming().value() + most_ended();
}

void Consistency::answer_pulls(Effects& effects) {
  if (!initialized_ || paused_) return;
  for (auto& [id, worker] : workers_) {
    if (!worker.pull || !worker.pull->complete() || !worker.live() || worker.barred) continue;
    adapt_bound(id, worker);
    if (far_ahead(worker) || !gate_.open(workers_, clocks_upcoming(), id, *worker.pull)) continue;
    AnswerPull answer{
        .worker = id,
        .clock = worker.pull->clock,
        .request = worker.pull->request,
        // With a quorum, what counts is the clock: late steps come with the next.
        .slowest = clock_rule_.with_quorum() ? clocks_upcoming() : Gate::slowest(workers_),
        .bound = worker.pull->bound,
        .entries = std::move(worker.pull->entries)};
    worker.answered = worker.pull->request;
    worker.given = std::max(worker.given, worker.pull->clock);
    worker.based_on = updates_;
    worker.answered_at = now_;
    worker.pull.reset();
    effects.emplace_back(std::move(answer));
  }
}

// --- workers that come to an end -----------------------------------------------------------------

// A worker whose slab was lost asks for no other: slab and worker go together, and what is left
// still suffices for those that are left.
void Consistency::lose_slab(Effects& effects) {
  slabs_.quarantine();
  const auto asking = std::ranges::count_if(
      workers_, [](const auto& entry) { return entry.second.undecided() && !entry.second.barred; });
  if (slabs_.usable() < std::min<std::uint64_t>(config_.minimal_slabs, asking))
    effects.emplace_back(
        Fault{"too many gradient slabs are still held by the fabric after failed transfers"});
}

void Consistency::drop_open(WorkerId id, WorkerState& worker) {
  slabs_.forget(id);
  if (!worker.open) return;
  if (worker.open->reading > 0)
    draining_[{id, worker.open->clock}] = {worker.open->slab, worker.open->reading, false};
  else if (worker.open->slab)
    slabs_.release(*worker.open->slab);
  worker.open.reset();
}

Effects Consistency::bar(WorkerId id, Incarnation incarnation, const std::string& why,
                         TimePoint now) {
  Effects effects;
  now_ = now;
  WorkerState& worker = workers_.at(id);
  if (worker.incarnation != incarnation || worker.barred || !worker.live()) return effects;
  give_up(id);
  worker.pull.reset();
  refuse({config_.job, worker.incarnation, id.value()}, Code::kUnavailable, why, effects);
  advance(effects);
  return effects;
}

// The last word on a worker: `final_clock` of its steps count, on every server.
void Consistency::settle(WorkerId id, WorkerState& worker, const WorkerNews& news,
                         Effects& effects) {
  worker.pull.reset();
  if (worker.ended < news.final_clock && worker.ended.next() == news.final_clock &&
      whole(worker.open ? &*worker.open : nullptr)) {
    // Its COMMIT was lost on the way here; those that got it have told what it said.
    close(id, worker, {.samples = news.final_samples, .factor = news.final_factor});
  } else if (worker.ended < news.final_clock) {
    effects.emplace_back(
        Fault{fmt::format("worker.{} died with {} steps, of which this server has {}", id.value(),
                          news.final_clock.value(), worker.ended.value())});
  }
  drop_open(id, worker);
  worker.initial.reset();
  if (news.phase == WorkerPhase::kFinished) return;
  // A last step that it abandoned here and not everywhere: it never was. It has no gradient.
  const auto beyond = [&](Clock clock) { return clock >= news.final_clock; };
  while (!worker.steps.empty() && beyond(worker.steps.back().clock) &&
         !worker.steps.back().committed) {
    const StepId step{id, worker.steps.back().clock};
    if (std::ranges::find(applying_, step) != applying_.end()) break;
    std::erase(queue_, step);
    worker.steps.pop_back();
  }
  worker.ended = std::min(worker.ended, std::max(news.final_clock, worker.start));
  worker.applied = std::min(worker.applied, worker.ended);
}

Effects Consistency::view(std::span<const WorkerNews> news, std::optional<WorkerId> initializer,
                          TimePoint now) {
  Effects effects;
  now_ = now;
  initializer_ = initializer;
  hear_of_joiners(news);
  for (const WorkerNews& about : news) {
    if (about.phase == WorkerPhase::kJoining) continue;
    if (const auto joiner = joiners_.find(about.id);
        joiner != joiners_.end() && joiner->second.incarnation == about.incarnation)
      take_in(about);
    const auto found = workers_.find(about.id);
    if (found == workers_.end() || found->second.incarnation != about.incarnation) continue;
    WorkerState& worker = found->second;
    if (about.phase == worker.phase || !worker.undecided()) continue;
    if (about.phase == WorkerPhase::kLive) continue;  // nobody comes back to life
    const bool was_live = worker.live();
    worker.phase = about.phase;
    worker.pull.reset();
    if (about.phase == WorkerPhase::kDead || about.phase == WorkerPhase::kFinished)
      settle(about.id, worker, about, effects);
    // Of a finished one, too: weights on their way to a process that has ended would keep updates
    // from their partitions until the deadline.
    if (was_live) effects.emplace_back(Disconnect{about.id});
  }
  advance(effects);
  return effects;
}

// --- workers that join ---------------------------------------------------------------------------

void Consistency::hear_of_joiners(std::span<const WorkerNews> news) {
  // One that the scheduler names no more has given up.
  std::erase_if(joiners_, [&](const auto& entry) {
    return std::ranges::find(news, entry.second.incarnation, &WorkerNews::incarnation) ==
           news.end();
  });
  for (const WorkerNews& about : news)
    if (about.phase == WorkerPhase::kJoining)
      joiners_.try_emplace(about.id, Joiner{about.incarnation, std::nullopt});
}

// Dying workers may have taken slabs with them.
bool Consistency::memory_for_one() const {
  const auto asking = std::ranges::count_if(
      workers_, [](const auto& entry) { return entry.second.undecided() && !entry.second.barred; });
  const std::uint64_t all = asking + newcomers().placed.size() + 1;
  return slabs_.usable() >= std::min<std::uint64_t>(config_.minimal_slabs, all);
}

// Nothing of whoever had the place before is on its way or still to be applied, and there is memory
// for one worker more.
bool Consistency::place_is_free(WorkerId id) const {
  if (const auto before = workers_.find(id);
      before != workers_.end() && (before->second.undecided() || !before->second.steps.empty()))
    return false;
  if (std::ranges::any_of(draining_, [&](const auto& one) { return one.first.worker == id; }))
    return false;
  return memory_for_one() && slabs_.room_for_one(workers_, late_before(), newcomers());
}

// The smallest live clock. No clock below it is to be applied with a newcomer's step: under
// per_clock everybody whose step may still come has ended them. With a quorum it is the clock that
// is applied next, since others may be late for ever; without anybody, where the last one was.
Clock Consistency::joining_clock() const {
  std::optional<Clock> slowest;
  Clock furthest;
  for (const auto& [id, worker] : workers_) {
    furthest = std::max(furthest, worker.ended);
    if (worker.live()) slowest = slowest ? std::min(*slowest, worker.ended) : worker.ended;
  }
  if (clock_rule_.with_quorum()) return clocks_upcoming();
  const Clock clock = slowest.value_or(furthest);
  if (config_.bugs.join_early && clock > Clock(0)) return Clock(clock.value() - 1);
  return config_.per_clock ? std::max(clock, clocks_upcoming()) : clock;
}

Newcomers Consistency::newcomers() const {
  Newcomers out;
  for (const auto& [id, joiner] : joiners_) {
    if (joiner.clock)
      out.placed.push_back(*joiner.clock);
    else
      ++out.waiting;
  }
  return out;
}

void Consistency::expect_joiners() {
  for (auto& [id, joiner] : joiners_)
    if (!joiner.clock && place_is_free(id)) joiner.clock = joining_clock();
}

// With a quorum whoever is late is late, a joiner too: no clock waits for it. A clock that another
// server updates already, and needs our norms for, is none of the joiner's: that server has not
// named its first clock yet, or a later one.
bool Consistency::waits_for_joiner() const {
  if (clock_rule_.with_quorum() || norms_.begun_elsewhere(clock_)) return false;
  return std::ranges::any_of(joiners_, [&](const auto& entry) {
    return entry.second.clock && *entry.second.clock <= clock_;
  });
}

// From now on it is a worker as the others.
void Consistency::take_in(const WorkerNews& news) {
  WorkerState worker{.incarnation = news.incarnation};
  worker.start = worker.ended = worker.applied = worker.given = news.first_clock;
  worker.bound = config_.staleness.low.value_or(0);
  workers_.insert_or_assign(news.id, std::move(worker));
  joiners_.erase(news.id);
}

Effects Consistency::pause(bool paused, TimePoint now) {
  Effects effects;
  now_ = now;
  paused_ = paused;
  advance(effects);
  return effects;
}

// --- checkpoints ---------------------------------------------------------------------------------

Effects Consistency::hold(const std::string& id, TimePoint now) {
  Effects effects;
  now_ = now;
  hold_.hold(id);
  advance(effects);
  return effects;
}

Effects Consistency::cut(const std::string& id, std::map<WorkerId, Clock> clocks, TimePoint now) {
  Effects effects;
  now_ = now;
  hold_.cut(id, std::move(clocks));
  advance(effects);
  return effects;
}

Effects Consistency::release(TimePoint now) {
  Effects effects;
  now_ = now;
  hold_.release();
  advance(effects);
  return effects;
}

std::string Consistency::held() const {
  // Nobody waits for an update that waits for another server's norms: that one may be at a
  // standstill a clock earlier, until all have reported.
  const bool waits = norms_.own_done() && !config_.bugs.held_back_by_norms;
  return initialized_ && !(hold_.holding() && update_runs_ && !waits) ? hold_.id() : std::string();
}

// --- the report ----------------------------------------------------------------------------------

std::map<WorkerId, Clock> Consistency::applied() const {
  std::map<WorkerId, Clock> clocks;
  for (const auto& [id, worker] : workers_)
    clocks[id] = norms_.own_done() ? worker.upcoming() : worker.counted();
  return clocks;
}

std::map<WorkerId, Clock> Consistency::resolving() const {
  std::map<WorkerId, Clock> clocks;
  for (const auto& [id, worker] : workers_)
    if (worker.phase == WorkerPhase::kResolving)
      clocks[id] = Clock(worker.ended.value() - (worker.last_abandoned ? 1 : 0));
  return clocks;
}

std::map<WorkerId, std::optional<Clock>> Consistency::joining() const {
  std::map<WorkerId, std::optional<Clock>> clocks;
  for (const auto& [id, joiner] : joiners_)
    if (joiner.clock || !memory_for_one()) clocks[id] = joiner.clock;
  return clocks;
}

std::map<WorkerId, float> Consistency::last_factors() const {
  std::map<WorkerId, float> factors;
  for (const auto& [id, worker] : workers_)
    if (worker.phase == WorkerPhase::kResolving) factors[id] = worker.last_factor;
  return factors;
}

std::map<WorkerId, std::uint32_t> Consistency::last_samples() const {
  std::map<WorkerId, std::uint32_t> samples;
  for (const auto& [id, worker] : workers_)
    if (worker.phase == WorkerPhase::kResolving) samples[id] = worker.last_samples;
  return samples;
}

Clock Consistency::furthest() const {
  Clock largest;
  for (const auto& [id, worker] : workers_) largest = std::max(largest, worker.applied);
  return largest;
}

std::vector<std::string> Consistency::waiting(TimePoint since) const {
  std::vector<std::string> lines;
  if (auto line = norms_.waiting_since(since)) lines.push_back(std::move(*line));
  for (const auto& [id, worker] : workers_) {
    if (!worker.live()) continue;
    if (worker.pull && worker.pull->since <= since) {
      std::string whom;
      if (worker.barred)
        whom = "nobody: this server gave it up after an error";
      else if (!initialized_)
        whom = "the initial values";
      else if (paused_)
        whom = "more workers (min_workers)";
      else if (!worker.pull->complete())
        whom = "the rest of its own pull";
      else
        whom = gate_.blockers(workers_, clocks_upcoming(), id, *worker.pull);
      if (whom.empty())
        whom = fmt::format("the update of clock {}, beyond which it has ended {} steps",
                           clock_.value(), worker.steps.size());
      if (!hold_.id().empty() && (hold_.holding() || hold_.cutting()))
        whom += fmt::format(" (updates stand still for checkpoint {})", hold_.id());
      lines.push_back(fmt::format("worker.{} waits to start step {} for {}", id.value(),
                                  worker.pull->clock.value(), whom));
    }
    if (worker.open && !worker.open->slab && worker.open->since <= since && !worker.barred)
      lines.push_back(fmt::format("worker.{} waits with its step {} for memory (a free slab)",
                                  id.value(), worker.open->clock.value()));
  }
  return lines;
}

}  // namespace leeway::server
