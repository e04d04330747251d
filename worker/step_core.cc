#include "worker/step_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace leeway::worker {

using transport::Ending;

namespace {

std::string name(ServerId server) { return fmt::format("server.{}", server.value()); }

// Endings in the order in which they are sent: the initial values come before step 0.
std::uint64_t order(Ending ending, Clock clock) {
  return ending == Ending::kInitial ? 0 : clock.value() + 1;
}

std::string title(Ending ending, Clock clock) {
  return ending == Ending::kInitial ? "the initial values" : fmt::format("step {}", clock.value());
}

tl::unexpected<Error> impossible(ServerId server, std::string_view what) {
  return fail(Code::kInternal,
              fmt::format("{} {}: it is of another version of Leeway or at fault; this is a bug "
                          "worth reporting",
                          name(server), what));
}

}  // namespace

StepCore::StepCore(Config config)
    : shards_(std::move(config.shards)),
      bound_(config.staleness),
      consistent_(config.consistent),
      clock_(config.clock) {
  std::size_t end = 0;
  for (const auto& shard : shards_)
    for (PartitionId p : shard) end = std::max<std::size_t>(end, p.value() + std::size_t{1});
  owner_.resize(end);
  have_.resize(end);
  filling_.payloads.resize(end);
  for (std::size_t s = 0; s < shards_.size(); ++s)
    for (PartitionId p : shards_[s]) owner_[p.value()] = ServerId(static_cast<std::uint32_t>(s));
  partitions_ = static_cast<std::size_t>(std::count_if(
      owner_.begin(), owner_.end(), [](const auto& owner) { return owner.has_value(); }));
  unconfirmed_.by_server.resize(shards_.size());
  held_.resize(shards_.size());
}

bool StepCore::owns(ServerId server, PartitionId partition) const noexcept {
  return partition.value() < owner_.size() && owner_[partition.value()] == server;
}

Result<Effects> StepCore::push(const std::vector<PartitionId>& partitions, float scale,
                               bool initial) {
  if (filling_.end)
    return fail(Code::kInvalidArgument,
                fmt::format("a push came after the end of {}",
                            title(filling_.end->ending, filling_.end->clock)));
  std::vector<std::vector<PartitionId>> by_server(shards_.size());
  for (PartitionId p : partitions) {
    if (p.value() >= owner_.size() || !owner_[p.value()])
      return fail(Code::kInvalidArgument,
                  fmt::format("partition {} is not part of the model", p.value()));
    if (filling_.payloads[p.value()] != Payload::kIdle)
      return fail(Code::kInvalidArgument, fmt::format("partition {} was pushed twice in step {}",
                                                      p.value(), clock_.value()));
    by_server[owner_[p.value()]->value()].push_back(p);
  }
  for (PartitionId p : partitions) filling_.payloads[p.value()] = Payload::kPushed;
  filling_.initial = initial;
  filling_.pushed += partitions.size();
  filling_.ever_pushed += partitions.size();

  Effects effects;
  for (std::size_t s = 0; s < by_server.size(); ++s) {
    if (by_server[s].empty()) continue;
    SendPush push{ServerId(static_cast<std::uint32_t>(s)), clock_, std::move(by_server[s]), scale,
                  initial};
    if (unconfirmed_.by_server[s]) {
      held_[s].push_back(std::move(push));
    } else {
      effects.push_back(std::move(push));
    }
  }
  return effects;
}

Result<Effects> StepCore::end(Ending ending, std::uint32_t samples,
                              std::vector<std::byte> worker_state, float factor) {
  if (filling_.end)
    return fail(Code::kInvalidArgument,
                fmt::format("{} ended twice", title(filling_.end->ending, filling_.end->clock)));
  if (ending != Ending::kAbandon && filling_.ever_pushed != partitions_)
    return fail(Code::kInvalidArgument,
                fmt::format("{} ended with {} of {} partitions pushed", title(ending, clock_),
                            filling_.ever_pushed, partitions_));
  filling_.end = transport::Commit{.clock = clock_,
                                   .ending = ending,
                                   .samples = samples,
                                   .worker_state = std::move(worker_state),
                                   .factor = factor};
  Effects effects;
  advance(effects);
  return effects;
}

Result<Effects> StepCore::pull_first() {
  if (pulling_ || last_request_ != 0)
    return fail(Code::kInvalidArgument, "the first pull was asked for twice");
  Effects effects;
  start_pull(clock_, bound_, false, effects);
  return effects;
}

Result<Effects> StepCore::pull_final() {
  if (final_wanted_) return fail(Code::kInvalidArgument, "the final pull was asked for twice");
  final_wanted_ = true;
  Effects effects;
  advance(effects);
  return effects;
}

// Sends what may go now.
void StepCore::advance(Effects& effects) {
  const bool early = filling_.end && shards_.size() == 1 && filling_.end->ending == Ending::kCommit;
  if (filling_.end && (filling_.pushed == 0 || early) && unconfirmed_.count == 0) {
    transport::Commit commit = std::move(*filling_.end);
    unconfirmed_ = {commit.ending, commit.clock, std::vector<bool>(shards_.size(), true),
                    shards_.size(), filling_.pushed};
    filling_ = Filling{};
    filling_.payloads.resize(owner_.size());
    for (std::size_t s = 0; s < shards_.size(); ++s)
      effects.push_back(SendEnding{ServerId(static_cast<std::uint32_t>(s)), commit});
    if (commit.ending == Ending::kInitial) {
      initial_sent_ = true;
    } else {
      clock_ = clock_.next();
      start_pull(clock_, bound_, false, effects);
    }
  }
  if (final_wanted_ && !pulling_ && !filling_.end) {
    final_wanted_ = false;
    start_pull(clock_, Bound{0}, true, effects);
  }
}

void StepCore::start_pull(Clock clock, Bound bound, bool final, Effects& effects) {
  pulling_ = Pulling{.clock = clock,
                     .request = ++last_request_,
                     .bound = bound,
                     .final = final,
                     .answers = std::vector<Pulling::Answer>(shards_.size()),
                     .seen = std::vector<bool>(owner_.size()),
                     .incomplete = shards_.size(),
                     .by_server = std::vector<std::uint64_t>(shards_.size())};
  // A finite bound beyond the wire's range is out of reach: a smaller one is met all the same.
  const std::uint32_t staleness = bound.infinite()
                                      ? transport::kUnboundedStaleness
                                      : static_cast<std::uint32_t>(std::min<std::uint64_t>(
                                            bound.value, transport::kUnboundedStaleness - 1));
  for (std::size_t s = 0; s < shards_.size(); ++s) {
    SendPull pull{.server = ServerId(static_cast<std::uint32_t>(s)),
                  .clock = clock,
                  .request = last_request_,
                  .staleness = staleness};
    pull.partitions.reserve(shards_[s].size());
    for (PartitionId p : shards_[s]) pull.partitions.push_back({p, have_[p.value()]});
    effects.push_back(std::move(pull));
  }
}

Result<Effects> StepCore::taken(ServerId from, const transport::PushTaken& message) {
  const bool initial = message.clock == transport::kInitialValues;
  if (!initial && message.clock > clock_)
    return impossible(
        from, fmt::format("took a push of step {}, which is yet to come", message.clock.value()));
  // Late, or twice.
  if (initial ? initial_sent_ : message.clock < clock_) return Effects{};
  for (PartitionId p : message.partitions) {
    if (!owns(from, p))
      return impossible(from, fmt::format("took partition {}, which is not its own", p.value()));
    if (filling_.payloads[p.value()] == Payload::kIdle || initial != filling_.initial)
      return impossible(
          from, fmt::format("took partition {} of {}, which was not pushed", p.value(),
                            initial ? "the initial values" : title(Ending::kCommit, clock_)));
  }
  std::size_t count = 0;
  for (PartitionId p : message.partitions) {
    if (filling_.payloads[p.value()] != Payload::kPushed) continue;
    filling_.payloads[p.value()] = Payload::kTaken;
    ++count;
  }
  if (count == 0) return Effects{};
  filling_.pushed -= count;
  Effects effects;
  effects.push_back(PayloadsTaken{count});
  advance(effects);
  return effects;
}

Result<Effects> StepCore::committed(ServerId from, const transport::Committed& message) {
  if (from.value() >= shards_.size()) return impossible(from, "is not part of the job");
  const std::uint64_t theirs = order(message.ending, message.clock);
  const std::uint64_t ours = order(unconfirmed_.ending, unconfirmed_.clock);
  if (unconfirmed_.count != 0 && theirs == ours && message.ending != unconfirmed_.ending)
    return impossible(from, fmt::format("confirmed another ending of step {} than was sent",
                                        message.clock.value()));
  const bool yet_to_come = unconfirmed_.count != 0
                               ? theirs > ours
                               : message.ending != Ending::kInitial && message.clock >= clock_;
  if (yet_to_come)
    return impossible(from, fmt::format("confirmed {}, which has not ended",
                                        title(message.ending, message.clock)));
  if (unconfirmed_.count == 0 || theirs < ours || !unconfirmed_.by_server[from.value()])
    return Effects{};  // late, or twice
  unconfirmed_.by_server[from.value()] = false;
  Effects effects;
  for (SendPush& push : std::exchange(held_[from.value()], {})) effects.push_back(std::move(push));
  if (--unconfirmed_.count != 0) return effects;
  if (unconfirmed_.untaken != 0) effects.push_back(PayloadsTaken{unconfirmed_.untaken});
  effects.push_back(EndingConfirmed{unconfirmed_.clock, unconfirmed_.ending});
  advance(effects);
  return effects;
}

Result<Effects> StepCore::pulled(ServerId from, const transport::Pulled& message) {
  if (from.value() >= shards_.size()) return impossible(from, "is not part of the job");
  if (message.request > last_request_)
    return impossible(from, fmt::format("answered pull {}, which was not asked", message.request));
  if (!pulling_ || message.request != pulling_->request) return Effects{};  // late
  Pulling& pull = *pulling_;
  Pulling::Answer& answer = pull.answers[from.value()];
  if (answer.complete) return Effects{};  // twice

  if (message.clock != pull.clock)
    return impossible(from, fmt::format("answered the pull of step {} for step {}",
                                        pull.clock.value(), message.clock.value()));
  if (message.total > shards_[from.value()].size() ||
      (answer.total && *answer.total != message.total))
    return impossible(from, fmt::format("announced {} partitions for a shard of {}", message.total,
                                        shards_[from.value()].size()));
  std::size_t fresh = 0;
  for (const auto& entry : message.entries) {
    if (!owns(from, entry.partition))
      return impossible(
          from, fmt::format("sent partition {}, which is not its own", entry.partition.value()));
    if (entry.version < have_[entry.partition.value()])
      return impossible(from, fmt::format("went back from version {} to {} of partition {}",
                                          have_[entry.partition.value()].value(),
                                          entry.version.value(), entry.partition.value()));
    fresh += pull.seen[entry.partition.value()] ? 0 : 1;
  }
  if (answer.entries + fresh > message.total)
    return impossible(from,
                      fmt::format("sent more partitions than the {} it announced", message.total));

  answer.total = message.total;
  for (const auto& entry : message.entries) {
    const std::size_t p = entry.partition.value();
    if (pull.seen[p]) continue;
    pull.seen[p] = true;
    ++answer.entries;
    if (entry.version == have_[p]) continue;
    have_[p] = entry.version;
    pull.changed.push_back(entry.partition);
  }
  if (message.slowest < pull.clock)
    pull.by_server[from.value()] = pull.clock.value() - message.slowest.value();
  pull.staleness = std::max(pull.staleness, pull.by_server[from.value()]);
  pull.in_force = std::max(pull.in_force, message.bound);

  Effects effects;
  if (answer.entries != *answer.total) return effects;
  answer.complete = true;
  if (--pull.incomplete != 0) return effects;
  if (const auto parts = consistent_ ? torn() : std::nullopt)
    return fail(
        Code::kInternal,
        fmt::format("the weights for step {} are of more than one cut: partition {} has "
                    "version {}, partition {} version {}; this is a bug worth reporting",
                    pull.clock.value(), parts->first.value(), have_[parts->first.value()].value(),
                    parts->second.value(), have_[parts->second.value()].value()));
  WeightsReady ready{.clock = pull.clock,
                     .staleness = pull.staleness,
                     .violation = !pull.bound.infinite() && pull.staleness > pull.bound.value,
                     .final = pull.final,
                     .changed = std::move(pull.changed),
                     .by_server = std::move(pull.by_server),
                     .bound = pull.in_force};
  pulling_.reset();
  effects.push_back(std::move(ready));
  advance(effects);
  return effects;
}

// Every update is of all partitions of a server, and every server makes one for each clock that has
// a gradient: one cut is one version everywhere.
std::optional<std::pair<PartitionId, PartitionId>> StepCore::torn() const {
  std::optional<PartitionId> first;
  for (const auto& shard : shards_)
    for (PartitionId p : shard) {
      if (!first) first = p;
      if (have_[p.value()] != have_[first->value()]) return std::pair{*first, p};
    }
  return std::nullopt;
}

std::string StepCore::waiting_for() const {
  for (std::size_t s = 0; s < shards_.size(); ++s)
    if (unconfirmed_.by_server[s])
      return fmt::format("server.{} has not confirmed {}", s,
                         title(unconfirmed_.ending, unconfirmed_.clock));
  for (std::size_t s = 0; s < shards_.size(); ++s) {
    const auto untaken = std::count_if(shards_[s].begin(), shards_[s].end(), [this](PartitionId p) {
      return filling_.payloads[p.value()] == Payload::kPushed;
    });
    if (untaken != 0)
      return fmt::format("server.{} has not taken {} payloads of step {}", s, untaken,
                         clock_.value());
  }
  for (std::size_t s = 0; pulling_ && s < shards_.size(); ++s)
    if (!pulling_->answers[s].complete)
      return fmt::format(
          "server.{} has not answered the pull of step {}: its gate waits for "
          "slower workers",
          s, pulling_->clock.value());
  return "";
}

}  // namespace leeway::worker
