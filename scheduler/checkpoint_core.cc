#include "scheduler/checkpoint_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "scheduler/one_line.h"

namespace leeway::scheduler {

CheckpointCore::CheckpointCore(std::uint32_t servers, std::uint64_t last_number)
    : parts_(servers), number_(last_number) {}

std::string CheckpointCore::id_of(std::uint64_t number) { return fmt::format("{:06}", number); }

std::uint64_t CheckpointCore::number_of(const std::string& id) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), number);
  return error == std::errc() && end == id.data() + id.size() ? number : 0;
}

void CheckpointCore::begin(Purpose purpose, bool pause, TimePoint now) {
  LEEWAY_CHECK(!active());
  purpose_ = purpose;
  id_ = id_of(++number_);
  stage_ = Stage::kPause;
  since_ = now;
  if (!pause) hold(now);
}

void CheckpointCore::pause_at(Clocks clocks) { clocks_ = std::move(clocks); }

void CheckpointCore::hold(TimePoint now) {
  stage_ = Stage::kHold;
  since_ = now;
}

void CheckpointCore::on_report(std::uint32_t server, const rpc::ServerReport& report) {
  if (!active()) return;
  Part& part = parts_[server];
  const bool about_this = report.held == id_ || report.durable == id_;
  if (about_this && !report.checkpoint_error.empty() && stage_ != Stage::kCommit) {
    if (!error_) error_ = fmt::format("server {}: {}", server, one_line(report.checkpoint_error));
    return;
  }
  if (stage_ == Stage::kHold && report.held == id_) part.applied = report.applied;
  if (stage_ == Stage::kCut && report.durable == id_) part.durable = report;
}

rpc::CheckpointOrder CheckpointCore::order() const {
  rpc::CheckpointOrder order;
  order.stage = rpc::CheckpointStage::NONE;
  if (stage_ == Stage::kIdle) return order;
  order.stage = stage_ == Stage::kPause  ? rpc::CheckpointStage::PAUSE
                : stage_ == Stage::kHold ? rpc::CheckpointStage::HOLD
                                         : rpc::CheckpointStage::CUT;
  order.id = id_;
  order.clocks = clocks_;
  return order;
}

bool CheckpointCore::all_held() const {
  return std::all_of(parts_.begin(), parts_.end(), [](const Part& p) { return p.applied; });
}

bool CheckpointCore::all_durable() const {
  return std::all_of(parts_.begin(), parts_.end(), [](const Part& p) { return p.durable; });
}

std::string CheckpointCore::not_held() const {
  std::string names;
  for (std::size_t i = 0; i < parts_.size(); ++i)
    if (!parts_[i].applied) names += fmt::format("{}server {}", names.empty() ? "" : ", ", i);
  return names;
}

CheckpointCore::Clocks CheckpointCore::largest_applied() const {
  Clocks largest;
  for (const Part& part : parts_)
    for (const auto& [worker, clock] : *part.applied)
      largest[worker] = std::max(largest[worker], clock);
  return largest;
}

void CheckpointCore::cut(Clocks clocks) {
  stage_ = Stage::kCut;
  clocks_ = std::move(clocks);
}

void CheckpointCore::commit(storage::Manifest& manifest) {
  stage_ = Stage::kCommit;
  manifest.id = id_;
  for (const auto& [worker, clock] : clocks_)
    manifest.workers[static_cast<std::uint32_t>(worker)].clock =
        Clock(static_cast<std::uint64_t>(clock));
  for (const Part& part : parts_) {
    manifest.shard_digests.push_back(part.durable->shard_digest);
    // Every update touches every partition, so at one cut all servers count alike; one without
    // partitions counts none.
    manifest.updates = std::max(manifest.updates, static_cast<std::uint64_t>(std::max<std::int64_t>(
                                                      0, part.durable->durable_updates)));
    manifest.bytes +=
        static_cast<std::uint64_t>(std::max<std::int64_t>(0, part.durable->durable_bytes));
    for (const auto& [worker, state] : part.durable->worker_states) {
      const auto entry = manifest.workers.find(static_cast<std::uint32_t>(worker));
      if (entry == manifest.workers.end() || !entry->second.state.empty()) continue;
      const auto* bytes = reinterpret_cast<const std::byte*>(state.data());
      entry->second.state.assign(bytes, bytes + state.size());
    }
  }
}

void CheckpointCore::end() {
  stage_ = Stage::kIdle;
  id_.clear();
  clocks_.clear();
  error_.reset();
  std::fill(parts_.begin(), parts_.end(), Part{});
}

}  // namespace leeway::scheduler
