// The state of a job, decided from plain inputs: what members said, and what time it is. No I/O, no
// clock, no threads; time is passed in and only its differences count, so no change of the wall
// clock evicts anybody. The shell (service.cc) guards it with one mutex, calls tick() every
// so often, and carries out what take_effects() returns.
//
// Every refusal is an Error for the caller; what happens to the job is in view().
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/monotonic.h"
#include "common/result.h"
#include "scheduler/checkpoint_core.h"
#include "scheduler/membership.h"
#include "scheduler/model_core.h"
#include "scheduler_types.h"  // generated
#include "storage/checkpoint_store.h"

namespace leeway::scheduler {

struct JobSetup {
  std::uint32_t servers = 1;
  std::uint32_t workers = 1;
  std::uint32_t places = 0;  // for workers, those that join later included; 0 = as many
  std::int64_t job = 0;
  std::int64_t first_incarnation = 1;
  SettingValues settings;                  // what the person set
  std::string checkpoint_dir;              // "" = no checkpoints
  std::vector<storage::Manifest> history;  // committed before, oldest first
  std::string restore;                     // id of one of them, "" = start anew
};

// For the shell to carry out.
struct Effects {
  std::optional<storage::Manifest> commit;  // answer with committed()
  std::vector<std::string> forget;          // checkpoints
  std::vector<std::string> log;             // one line each
};

class JobCore {
 public:
  // ConfigError when the settings are not valid or `restore` is not in `history`.
  JobCore(JobSetup setup, TimePoint now);

  Result<rpc::Registration> join(const rpc::RegisterRequest& request, TimePoint now);
  Status declare(const rpc::Caller& who, const rpc::Model& model, TimePoint now);
  Status report(const rpc::Caller& who, const rpc::WorkerReport& report, TimePoint now);
  Status report(const rpc::Caller& who, const rpc::ServerReport& report, TimePoint now);
  Result<rpc::Plan> plan(const rpc::Caller& who);
  Status finish(const rpc::Caller& who, const rpc::WorkerReport& report, TimePoint now);
  Status fault(const rpc::Caller& who, const std::string& reason, TimePoint now);
  Status lost(rpc::Role::type role, std::int32_t id, const std::string& why, bool fails_job,
              TimePoint now);

  // The id of the checkpoint that is made; outcome() says how it ended.
  Result<std::string> checkpoint(TimePoint now);
  std::optional<Status> outcome(const std::string& id) const;
  Status change(const std::string& key, const std::string& value);
  // With a checkpoint first, where the job trains and has a directory.
  void stop(const std::string& reason, TimePoint now);
  // Without.
  void interrupt(const std::string& reason);

  void tick(TimePoint now);
  // How the commit of take_effects() went.
  void committed(const storage::Manifest& manifest, const Status& status, TimePoint now);
  Effects take_effects();

  std::int64_t epoch() const { return epoch_; }
  bool over() const { return phase_ == rpc::Phase::DONE || phase_ == rpc::Phase::FAILED; }
  rpc::Phase::type phase() const { return phase_; }
  const std::string& reason() const { return reason_; }
  const JobSettings& settings() const { return settings_; }
  rpc::View view() const;
  rpc::JobStatus status(TimePoint now) const;
  std::vector<rpc::TensorStatus> tensors() const;
  std::vector<rpc::CheckpointInfo> checkpoints() const;

 private:
  // Those who come while the job trains (job_joins.cc).
  Result<std::int32_t> free_place(const rpc::RegisterRequest& request) const;
  Status may_join(Seat& seat, rpc::Role::type role, TimePoint now);
  void begin_join(Seat& seat, const rpc::RegisterRequest& request, TimePoint now);
  Status joined(const Seat& seat) const;
  void advance_joins();
  std::int64_t first_clock_at_least(const Seat& seat) const;
  std::optional<std::int32_t> refusing_server(const Seat& seat) const;
  void take_in(Seat& seat, std::int64_t clock);
  void forget_joiner(Seat& seat, const std::string& why);
  void forget_joiners(const std::string& why);
  bool servers_know(std::int64_t epoch) const;
  bool somebody_joins() const;
  std::uint32_t places() const { return std::max(setup_.places, setup_.workers); }

  void pause_or_go_on(TimePoint now);
  void advance(TimePoint now);
  void make_plan();
  void run_when_ready(TimePoint now);
  void resolve();
  void update_initializer();
  void advance_checkpoint(TimePoint now);
  void choose_checkpoint_or_end(TimePoint now);
  bool checkpoint_due() const;
  void begin_checkpoint(CheckpointCore::Purpose purpose, TimePoint now);
  CheckpointCore::Clocks cut_clocks() const;
  bool keeps_residuals() const;  // each worker does
  void pause_workers(TimePoint now);
  std::string not_standing() const;
  std::optional<storage::ManifestResidual> residual_of(const Seat& seat) const;
  bool residuals_kept() const;
  std::optional<std::string> residual_error() const;
  void name_residuals(storage::Manifest& manifest);
  void free_places_of_the_dead(storage::Manifest& manifest) const;
  void abort_checkpoint(const std::string& why);
  void close_outcome(const std::string& id, Status status);
  void lose_worker(Seat& seat, const std::string& why);
  void lose_server(Seat& seat, const std::string& why);
  void check_silence(TimePoint now);
  std::string phase_name() const;
  std::string who_is_missing() const;
  std::optional<std::int64_t> slowest_applied() const;
  std::int64_t first_clock(const Seat& worker) const;
  bool any_worker(rpc::MemberState::type state) const;
  bool trains() const { return phase_ == rpc::Phase::RUNNING || phase_ == rpc::Phase::STOPPING; }
  void enter(rpc::Phase::type phase, const std::string& reason);
  void fail_job(const std::string& reason);
  void say(std::string line) { effects_.log.push_back(std::move(line)); }
  void touch() { ++epoch_; }

  const JobSetup setup_;
  Membership members_;
  ModelCore model_;
  CheckpointCore checkpoint_;
  JobSettings settings_;  // effective, with the changes
  SettingValues changes_;
  rpc::Plan plan_;
  rpc::Phase::type phase_ = rpc::Phase::GATHERING;
  std::string reason_;
  std::int64_t epoch_ = 1;
  std::int64_t ready_epoch_ = 0;  // the view that servers must be ready for
  std::int32_t initializer_ = -1;
  bool initialized_ = false;
  bool ended_ = false;                     // no worker is left to wait for
  std::optional<TimePoint> paused_since_;  // fewer workers than min_workers
  rpc::WorkerReport replaced_;             // of workers whose place another has
  std::optional<std::string> stop_;        // reason of a graceful stop that was asked for
  bool requested_ = false;                 // a checkpoint, by a person
  std::int64_t next_checkpoint_ = 0;
  std::map<std::string, Status> outcomes_;
  std::vector<rpc::CheckpointInfo> committed_;  // oldest first
  TimePoint started_;                           // gathering
  std::optional<TimePoint> running_since_, over_at_;
  TimePoint last_tick_;
  TimePoint latest_;  // the latest time anybody passed in
  Effects effects_;
};

rpc::CheckpointInfo info_of(const storage::Manifest& manifest);

}  // namespace leeway::scheduler
