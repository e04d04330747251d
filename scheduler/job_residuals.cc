// Checkpoints of a job whose workers keep what they have not sent yet (gradient_codec = topk): they
// stand still at the clocks of the cut, and their residuals of these clocks belong to it.
#include <fmt/format.h>

#include <algorithm>

#include "scheduler/job_core.h"
#include "scheduler/one_line.h"

namespace leeway::scheduler {

bool JobCore::keeps_residuals() const {
  return settings_.gradients().codec == Codec::kTopK && !setup_.checkpoint_dir.empty();
}

// Under per_clock without a quorum clocks are applied whole, so all must stop at the same: the one
// that somebody is furthest at. Nobody needs more of the others to get there than that one did.
// Those behind are sent on at once: whoever is in front may need their steps to end its own.
void JobCore::pause_workers(TimePoint now) {
  const bool together = settings_.per_clock() && settings_.quorum == 0;
  CheckpointCore::Clocks clocks = checkpoint_.clocks();
  // What was ordered stands, also when the one in front has died since.
  std::int64_t furthest = 0;
  for (const auto& [worker, clock] : clocks) furthest = std::max(furthest, clock);
  for (const Seat& seat : members_.workers()) {
    if (seat.live()) furthest = std::max(furthest, seat.worker.clock);
    if (seat.who.state == rpc::MemberState::FINISHED)
      furthest = std::max(furthest, seat.who.final_clock);
  }
  bool all = true;
  for (const Seat& seat : members_.workers()) {
    if (!seat.live()) continue;
    const bool behind = together && seat.worker.clock < furthest;
    if (behind) clocks[seat.who.id] = furthest;
    all = all && !behind && seat.worker.paused == checkpoint_.id();
  }
  if (all) {
    checkpoint_.hold(now);
    touch();
  } else if (clocks != checkpoint_.clocks()) {
    checkpoint_.pause_at(std::move(clocks));
    touch();
  }
}

// Who does not stand still yet: "worker 1, worker 2".
std::string JobCore::not_standing() const {
  std::string names;
  for (const Seat& seat : members_.workers()) {
    if (!seat.live()) continue;
    const auto before = checkpoint_.clocks().find(seat.who.id);
    const bool there = before == checkpoint_.clocks().end() || seat.worker.clock >= before->second;
    if (!there || seat.worker.paused != checkpoint_.id())
      names += fmt::format("{}worker {}", names.empty() ? "" : ", ", seat.who.id);
  }
  return names;
}

// The worker's residual of the checkpoint's clock, as far as it is on disk.
std::optional<storage::ManifestResidual> JobCore::residual_of(const Seat& seat) const {
  const auto kept = [&](const std::string& id) -> std::optional<storage::ManifestResidual> {
    const auto found = seat.worker.residuals.find(id);
    if (found == seat.worker.residuals.end() || !found->second.error.empty()) return std::nullopt;
    return storage::ManifestResidual{id, found->second.digest};
  };
  if (auto residual = kept(checkpoint_.id())) return residual;
  // One that finished stays what it was at its end.
  const auto cut = checkpoint_.clocks().find(seat.who.id);
  if (seat.who.state != rpc::MemberState::FINISHED || cut == checkpoint_.clocks().end() ||
      cut->second != seat.who.final_clock)
    return std::nullopt;
  return kept(fmt::format("end-{}", seat.who.incarnation));
}

bool JobCore::residuals_kept() const {
  if (!keeps_residuals()) return true;
  return std::all_of(members_.workers().begin(), members_.workers().end(), [&](const Seat& seat) {
    return !seat.live() || !checkpoint_.clocks().contains(seat.who.id) || residual_of(seat);
  });
}

void JobCore::name_residuals(storage::Manifest& manifest) {
  if (!keeps_residuals()) return;
  for (const Seat& seat : members_.workers()) {
    const auto worker = manifest.workers.find(static_cast<std::uint32_t>(seat.who.id));
    if (worker == manifest.workers.end()) continue;
    worker->second.residual = residual_of(seat);
    if (const auto& residual = worker->second.residual) {
      manifest.bytes += static_cast<std::uint64_t>(
          std::max<std::int64_t>(0, seat.worker.residuals.at(residual->shard).bytes));
      continue;
    }
    say(
        fmt::format("checkpoint {} has no residual of worker {}: whoever takes its place begins "
                    "without",
                    manifest.id, seat.who.id));
  }
}

std::optional<std::string> JobCore::residual_error() const {
  if (!checkpoint_.active() || !keeps_residuals()) return std::nullopt;
  for (const Seat& seat : members_.workers()) {
    const auto kept = seat.worker.residuals.find(checkpoint_.id());
    if (kept != seat.worker.residuals.end() && !kept->second.error.empty())
      return fmt::format("worker {}: {}", seat.who.id, one_line(kept->second.error));
  }
  return std::nullopt;
}

}  // namespace leeway::scheduler
