// The engine's updates and snapshots.
#include <csignal>
#include <utility>

#include "common/log.h"
#include "server/engine.h"
#include "server/engine_parts.h"

namespace leeway::server {
namespace {

// Partitions smaller than this share a task: handing one over costs some microseconds.
constexpr std::uint64_t kGroupElements = 1u << 17;

}  // namespace

void Engine::carry_out(Apply& effect) { begin_update({.apply = std::move(effect)}); }

void Engine::carry_out(PublishInitial&) { begin_update({.initial = true}); }

void Engine::begin_update(Update update) {
  LEEWAY_CHECK(!update_);
  update_ = std::make_unique<Update>(std::move(update));
  update_->unfinished = shard_->partitions();
  for (LocalPartition p = 0; p < shard_->partitions(); ++p) update_->waiting.push_back(p);
  if (update_->unfinished == 0)
    endpoint_->post([this] { group_done({}); });
  else
    continue_update();
}

void Engine::continue_update() {
  if (!update_ || stopping_) return;
  std::vector<LocalPartition> blocked, group, copy_first;
  std::uint64_t elements = 0;
  const auto hand_over = [&] {
    if (!group.empty()) compute(std::exchange(group, {}), std::exchange(copy_first, {}));
    elements = 0;
  };
  for (const LocalPartition p : update_->waiting) {
    const auto claim = !shard_->may_update(p) ? Snapshot::Claim::kWait
                       : snapshot_            ? snapshot_->claim(p)
                                              : Snapshot::Claim::kFree;
    if (claim == Snapshot::Claim::kWait) {
      blocked.push_back(p);
      continue;
    }
    shard_->begin_update(p);
    group.push_back(p);
    if (claim == Snapshot::Claim::kCopyFirst) copy_first.push_back(p);
    if ((elements += shard_->elements(p)) >= kGroupElements) hand_over();
  }
  update_->waiting = std::move(blocked);
  hand_over();
}

void Engine::compute(std::vector<LocalPartition> group, std::vector<LocalPartition> copy_first) {
  pool_.run([this, group = std::move(group), copy_first = std::move(copy_first),
             snapshot = snapshot_, update = update_.get(), hyper = hyper_] {
    for (const LocalPartition p : copy_first) snapshot->copy_aside(p);
    for (const LocalPartition p : group) {
      if (update->initial)
        shard_->publish_partition(p);
      else
        shard_->update_partition(p, optimizer_, hyper, update->apply.contributions,
                                 update->apply.weight);
    }
    endpoint_->post([this, group] { group_done(group); });
  });
}

void Engine::group_done(const std::vector<LocalPartition>& group) {
  for (const LocalPartition p : group) shard_->end_update(p);
  update_->unfinished -= group.size();
  if (update_->unfinished > 0) return;
  const bool initial = update_->initial;
  update_.reset();
  if (!initial) ++report_.updates;
  run(initial ? core_->initial_published() : core_->apply_done());
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
