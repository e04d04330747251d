// One checkpoint at a time, from HOLD to commit (ARCHITECTURE.md, "Checkpoints"). Knows what the
// servers reported about it; when to begin one, and what its end means for the job, is JobCore's to
// say. No I/O and no clock. Guarded by whoever owns it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/monotonic.h"
#include "common/result.h"
#include "scheduler_types.h"  // generated
#include "storage/checkpoint_store.h"

namespace leeway::scheduler {

class CheckpointCore {
 public:
  enum class Purpose { kPeriodic, kRequested, kStop, kFinal };
  enum class Stage { kIdle, kPause, kHold, kCut, kCommit };
  using Clocks = std::map<std::int32_t, std::int64_t>;

  // Ids are numbers, counted on from `last_number` so that they sort by age.
  CheckpointCore(std::uint32_t servers, std::uint64_t last_number);

  static std::string id_of(std::uint64_t number);
  // 0 when the id is not one of ours.
  static std::uint64_t number_of(const std::string& id);

  // `pause`: workers stand still for it, so it begins with PAUSE.
  void begin(Purpose purpose, bool pause, TimePoint now);
  // Workers stop before these clocks, not at once.
  void pause_at(Clocks clocks);
  // They all stand.
  void hold(TimePoint now);
  void on_report(std::uint32_t server, const rpc::ServerReport& report);

  bool active() const { return stage_ != Stage::kIdle; }
  Stage stage() const { return stage_; }
  Purpose purpose() const { return purpose_; }
  const std::string& id() const { return id_; }
  // Of PAUSE or HOLD.
  TimePoint since() const { return since_; }
  // What workers are to stop before, or servers to apply.
  const Clocks& clocks() const { return clocks_; }
  // What the first server that could not write said.
  const std::optional<std::string>& error() const { return error_; }
  rpc::CheckpointOrder order() const;

  bool all_held() const;
  bool all_durable() const;
  std::string not_held() const;  // "server 1, server 2"
  // The element-wise largest of what is applied; all_held().
  Clocks largest_applied() const;
  void cut(Clocks clocks);
  // All durable: fills what the servers reported, and the workers of the cut.
  void commit(storage::Manifest& manifest);
  // Committed or given up.
  void end();

 private:
  struct Part {
    std::optional<Clocks> applied;  // at the hold
    std::optional<rpc::ServerReport> durable;
  };

  std::vector<Part> parts_;
  std::uint64_t number_;
  Stage stage_ = Stage::kIdle;
  Purpose purpose_ = Purpose::kPeriodic;
  std::string id_;
  Clocks clocks_;
  TimePoint since_{};
  std::optional<std::string> error_;
};

}  // namespace leeway::scheduler
