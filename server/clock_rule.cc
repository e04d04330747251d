#include "server/clock_rule.h"

#include <algorithm>

namespace leeway::server {

struct ClockRule::Count {
  std::size_t awaited = 0;    // workers whose next step may still come
  std::size_t in = 0;         // of those, who ended the clock's step
  std::size_t in_front = 0;   // of those, who are not behind the clock
  Clock furthest;             // of those
  bool any = false;           // somebody has ended the clock's step
  bool pending = false;       // something waits to be applied with the clock
  bool allowed = false;       // and the checkpoint lets it
  bool cut_is_here = true;    // what the cut wants of the clock
  std::optional<Clock> next;  // a later one of which the cut wants something that is here
};

ClockRule::Decision ClockRule::decide(const Workers& workers, const CheckpointHold& hold,
                                      Clock clock, TimePoint now) {
  using What = Decision::What;
  Count count;
  for (const auto& [id, worker] : workers) {
    const bool ended = worker.ended > clock;
    count.any |= ended;
    if (worker.undecided()) {
      ++count.awaited;
      count.in += ended ? 1 : 0;
      count.in_front += worker.ended >= clock ? 1 : 0;
      count.furthest = std::max(count.furthest, worker.ended);
    }
    count.cut_is_here &= worker.ended >= std::min(hold.target(worker, id), clock.next());
    if (worker.steps.empty()) continue;
    const Clock first = worker.steps.front().clock;
    if (first > clock) {
      if (hold.allows(worker, id, first)) count.next = std::min(count.next.value_or(first), first);
      continue;
    }
    count.pending = true;
    count.allowed |= hold.allows(worker, id, first);
  }
  const auto apply = [this] {
    reached_.reset();
    return Decision{What::kApply, {}, {}};
  };
  if (with_quorum() && hold.cutting() && !count.allowed && count.cut_is_here && count.next)
    return {What::kMove, {}, *count.next};
  if (count.pending && !count.allowed) return {};
  if (with_quorum() && hold.cutting())
    return count.pending && count.cut_is_here ? apply() : Decision{};
  if (with_quorum() && count.awaited > 0 && count.in_front == 0) {
    if (count.pending) return apply();
    reached_.reset();
    return {What::kMove, {}, count.furthest};
  }
  if (!count.any && !count.pending) return {};
  const std::size_t need =
      with_quorum() ? std::min<std::size_t>(quorum_, count.awaited) : count.awaited;
  if (count.in < need) {
    reached_.reset();
    return {};
  }
  if (count.in < count.awaited) {
    if (!reached_) reached_ = now;
    const TimePoint until = deadline(workers, clock);
    if (now < until) return {What::kWait, until, {}};
  }
  return apply();
}

TimePoint ClockRule::deadline(const Workers& workers, Clock clock) const {
  return *reached_ + (grace_.automatic ? adaptive_grace(workers, clock) : Duration(grace_.wait));
}

Duration ClockRule::adaptive_grace(const Workers& workers, Clock clock) const {
  double cost = 0;  // samples that are not computed, by tick of waiting
  for (const auto& [id, worker] : workers)
    if (worker.live() && worker.pull && worker.pace > Duration())
      cost += static_cast<double>(worker.samples) / static_cast<double>(worker.pace.count());
  Duration longest{};
  for (const auto& [id, worker] : workers) {
    if (!worker.live() || worker.ended > clock) continue;
    if (!worker.answered_at || worker.pace == Duration()) continue;
    const double worth = static_cast<double>(worker.samples) / 2;
    const auto pace = static_cast<double>(worker.pace.count());
    const Duration budget(
        static_cast<Duration::rep>(std::min(pace, cost > 0 ? worth / cost : pace)));
    if (*worker.answered_at + worker.pace <= *reached_ + budget)
      longest = std::max(longest, budget);
  }
  return longest;
}

}  // namespace leeway::server
