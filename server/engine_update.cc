// The engine's updates and snapshots.
#include <csignal>
#include <ctime>
#include <utility>

#include "common/log.h"
#include "server/engine.h"
#include "server/engine_parts.h"

namespace leeway::server {
namespace {

// Partitions smaller than this share a task: handing one over costs some microseconds.
constexpr std::uint64_t kGroupElements = 1u << 17;
// A shard that is updated in about that time needs no hand-over at all.
constexpr std::uint64_t kUpdateHere = 1u << 15;

// That this thread has run.
double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

}  // namespace

void Engine::carry_out(Apply& effect) {
  for (Sum& sum : effect.sums) rule_.weigh(sum);
  begin_update({.apply = std::move(effect)});
}

void Engine::carry_out(PublishInitial&) { begin_update({.initial = true}); }

// Nothing waits for it but slabs: one task will do.
void Engine::carry_out(FoldLate& effect) {
  rule_.weigh(effect);
  pool_.run([this, fold = std::move(effect)] {
    for (LocalPartition p = 0; p < shard_->partitions(); ++p) shard_->fold_late(p, fold);
    endpoint_->post([this] { run(core_->apply_done(MonotonicClock::now())); });
  });
}

void Engine::carry_out(WakeAt& effect) {
  endpoint_->at(effect.at, [this] { run(core_->tick(MonotonicClock::now())); });
}

void Engine::begin_update(Update update) {
  LEEWAY_CHECK(!update_);
  update_ = std::make_unique<Update>(std::move(update));
  update_->hyper = rule_.hyper();
  update_->unfinished = shard_->partitions();
  update_->waiting = order_;
  update_->done.resize(shard_->partitions());
  update_->writes.resize(shard_->partitions());
  if (update_->unfinished == 0)
    endpoint_->post([this] { group_done({}, 0); });
  else
    continue_update();
}

void Engine::continue_update() {
  if (!update_ || stopping_) return;
  std::vector<LocalPartition> blocked;
  std::vector<Group> groups;
  std::uint64_t elements = kGroupElements;
  for (const LocalPartition p : update_->waiting) {
    const auto claim = !shard_->may_update(p) ? Snapshot::Claim::kWait
                       : snapshot_            ? snapshot_->claim(p)
                                              : Snapshot::Claim::kFree;
    if (claim == Snapshot::Claim::kWait) {
      blocked.push_back(p);
      continue;
    }
    shard_->begin_update(p);
    if (elements >= kGroupElements) {
      groups.emplace_back();
      elements = 0;
    }
    groups.back().partitions.push_back(p);
    if (claim == Snapshot::Claim::kCopyFirst) groups.back().copy_first.push_back(p);
    elements += shard_->elements(p);
  }
  update_->waiting = std::move(blocked);
  for (Group& group : groups) compute(std::move(group));  // the last may end the update
}

void Engine::compute(Group group) {
  auto work = [this, group = std::move(group), snapshot = snapshot_, update = update_.get()] {
    Outcome outcome;
    const kernels::Hyper& hyper = update->hyper;
    for (const LocalPartition p : group.copy_first) snapshot->copy_aside(p);
    for (const LocalPartition p : group.partitions) {
      if (update->initial)
        shard_->publish_partition(p);
      else if (group.norms)
        shard_->step_part(p, hyper, update->apply.sums.front(), *group.norms);
      else if (layout_.part_of_tensor(p))
        outcome.summed.emplace_back(p, shard_->sum_part(p, hyper, update->apply.sums.front()));
      else
        shard_->update_partition(p, rule_.optimizer(), hyper, update->apply.sums);
      if (outcome.summed.empty() || outcome.summed.back().first != p) outcome.updated.push_back(p);
    }
    return outcome;
  };
  if (layout_.total_elements() <= kUpdateHere) return group_done(work(), 0);
  pool_.run([this, work = std::move(work)] {
    const double before = processor_seconds();
    auto outcome = work();
    endpoint_->post([this, outcome = std::move(outcome), seconds = processor_seconds() - before] {
      group_done(outcome, seconds);
    });
  });
}

void Engine::carry_out(StepTensor& effect) {
  std::vector<Group> groups;
  std::uint64_t elements = kGroupElements;
  for (const LocalPartition p : effect.parts) {
    if (elements >= kGroupElements) {
      groups.push_back({.norms = effect.sums});
      elements = 0;
    }
    groups.back().partitions.push_back(p);
    elements += shard_->elements(p);
  }
  for (Group& group : groups) compute(std::move(group));
}

void Engine::group_done(const Outcome& outcome, double processor_seconds) {
  const bool initial = update_->initial;
  if (!initial) report_.update_processor_seconds += processor_seconds;
  for (const auto& [p, sums] : outcome.summed)
    run(core_->part_summed(p, sums, MonotonicClock::now()));
  if (outcome.updated.empty() && !outcome.summed.empty()) return;  // it may have ended meanwhile
  const std::size_t updates = initial ? 1 : update_->apply.sums.size();
  for (const LocalPartition p : outcome.updated) {
    shard_->end_update(p, updates);
    update_->done[p] = true;
    for (const Update::Write& write : std::exchange(update_->writes[p], {}))
      write_partition(write.pull, write.entry);
  }
  update_->unfinished -= outcome.updated.size();
  if (update_->unfinished > 0) return;
  const auto over = std::exchange(update_, nullptr);
  for (const Sum& sum : over->apply.sums)
    for (const Contribution& contribution : sum.contributions) release_mapped(contribution.slab);
  for (const auto& pull : over->pulls) finish_pull(pull);
  const TimePoint now = MonotonicClock::now();
  if (!initial) {
    report_.updates += updates;
    report_.update_seconds += seconds_between(over->begun, now);
  }
  run(initial ? core_->initial_published(now) : core_->apply_done(now));
  if (config_.kill_at_step && core_->furthest().value() >= *config_.kill_at_step) {
    log::warning("injected fault: killed after step {}", *config_.kill_at_step);
    ::raise(SIGKILL);
  }
}

void Engine::carry_out(TakeSnapshot& effect) {
  if (!writer_ || snapshot_) {
    report_.checkpoint_error = !writer_ ? "the job has no checkpoint directory"
                                        : "the previous checkpoint is still being written";
    return;
  }
  const std::uint64_t limit = config_.settings.server_memory_limit.value;
  snapshot_ = std::make_shared<Snapshot>(std::move(effect), *shard_,
                                         limit == 0 ? UINT64_MAX : limit - layout_.total_bytes());
  writer_->write(snapshot_);
}

}  // namespace leeway::server
