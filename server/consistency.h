// The consistency core of a server: which payloads are read, when a step counts, when it is
// applied, and when a worker may have weights. No I/O, no threads, no time of its own: messages and
// completions go in, effects come out (server/effects.h). ARCHITECTURE.md, "The life of a push", is
// its contract.
//
//   PUSH -> offered -> admitted (slab) -> reading -> taken -> COMMIT -> ended -> applied
//
// What a peer says is checked here and refused in words; nothing a peer sends can make this object
// abort or grow without bound. A message that comes twice is answered twice and counts once.
//
// Called from one thread, the endpoint's. Lives as long as the engine.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/job_settings.h"
#include "server/checkpoint_hold.h"
#include "server/clock_rule.h"
#include "server/effects.h"
#include "server/gate.h"
#include "server/norm_exchange.h"
#include "server/slab_admission.h"
#include "server/worker_state.h"

namespace leeway::server {

struct CoreConfig {
  struct Partition {
    PartitionId id;
    std::uint64_t elements = 0;
  };
  struct Worker {
    Incarnation incarnation;
    Clock clock;  // 0, or where it was in the checkpoint
    std::vector<std::byte> state;
  };
  // Broken on purpose, so that tests can show that they would notice. All off in a server.
  struct PlantedBugs {
    std::uint64_t gate_slack = 0;
    bool no_dedupe = false;
    bool late_lost = false, late_twice = false;
    bool norms_of_any_clock = false, held_back_by_norms = false;
    bool join_early = false;
  };

  std::uint64_t job = 0;
  bool per_clock = false;
  std::uint32_t quorum = 0;  // 0 = all
  Grace grace;
  Bound staleness;
  GradientCodec codec;
  std::uint32_t slabs = 1;
  // With fewer left, steps could wait for ever; one for each worker that may ask is always enough.
  std::uint32_t minimal_slabs = 1;
  // The job's only one: a step is atomic here without the workers' help, so its COMMIT may come
  // before its payloads.
  bool only_server = false;
  bool initialized = false;  // restored: no initial values to wait for
  std::vector<Partition> partitions;
  std::map<WorkerId, Worker> workers;
  NormConfig norms;
  PlantedBugs bugs;
};

// What the scheduler's view says of a worker.
struct WorkerNews {
  WorkerId id;
  Incarnation incarnation;
  WorkerPhase phase = WorkerPhase::kLive;
  Clock final_clock;                // dead and finished ones
  float final_factor = 1;           // dead ones: Commit::factor of the last of these steps
  std::uint32_t final_samples = 1;  // and Commit::samples
  Clock first_clock;                // live ones that joined
};

class Consistency {
 public:
  explicit Consistency(CoreConfig config);

  // Messages.
  Effects push(const transport::Sender& sender, const transport::Push& push, TimePoint now);
  Effects end_step(const transport::Sender& sender, const transport::Commit& commit, TimePoint now);
  Effects pull(const transport::Sender& sender, const transport::Pull& pull, TimePoint now);
  Effects norms(const transport::Sender& sender, const transport::Norms& norms, TimePoint now);

  // Completions of effects. `released`: the provider will not touch the memory any more.
  Effects read_done(const ReadPayload& read, bool ok, bool released, const std::string& why,
                    TimePoint now);
  Effects part_summed(LocalPartition partition, const NormSums& sums, TimePoint now);
  Effects apply_done(TimePoint now);
  Effects initial_published(TimePoint now);
  Effects tick(TimePoint now);
  // A write of weights or a message to the worker failed: nothing more is taken from it.
  Effects bar(WorkerId worker, Incarnation incarnation, const std::string& why, TimePoint now);

  // The scheduler's word.
  //
  // A process that takes the place of a dead worker comes after it in `workers`. While it is
  // kJoining no clock is applied, from joining() on, that it might still belong to; kLive says from
  // which clock on it does, the same on every server.
  Effects view(std::span<const WorkerNews> workers, std::optional<WorkerId> initializer,
               TimePoint now);
  // While it lasts nobody gets weights.
  Effects pause(bool paused, TimePoint now);
  Effects hold(const std::string& id, TimePoint now);
  Effects cut(const std::string& id, std::map<WorkerId, Clock> clocks, TimePoint now);
  Effects release(TimePoint now);

  // For the report.
  std::string held() const;  // id of the checkpoint at which this server stands still, or ""
  std::map<WorkerId, Clock> applied() const;
  std::map<WorkerId, Clock> resolving() const;  // steps of each that count here so far
  // The first clock that each may belong to; nothing when there is no memory for one worker more.
  std::map<WorkerId, std::optional<Clock>> joining() const;
  bool anybody_joins() const noexcept { return !joiners_.empty(); }
  // Of those that are resolved: Commit::factor and Commit::samples of the last such step.
  std::map<WorkerId, float> last_factors() const;
  std::map<WorkerId, std::uint32_t> last_samples() const;
  Clock furthest() const;  // largest number of steps applied of any worker
  // Who waits for whom, on what, since before `since`; one line each.
  std::vector<std::string> waiting(TimePoint since) const;
  bool initialized() const noexcept { return initialized_; }
  const NormConfig& norm_config() const noexcept { return config_.norms; }
  const Workers& workers() const noexcept { return workers_; }

 private:
  // The sender's state, or nothing after a refusal (or silence) has been put into `effects`.
  WorkerState* check(const transport::Sender& sender, Effects& effects) const;
  void refuse(const transport::Sender& sender, Code code, std::string text, Effects& effects) const;
  // A peer broke the protocol: refuse, and take nothing further from it.
  void violation(const transport::Sender& sender, std::string text, Effects& effects);

  void give_up(WorkerId id);

  void push_entry(const transport::Sender& sender, WorkerState& worker, const transport::Push& push,
                  const transport::Push::Entry& entry, std::span<const std::byte> inlined,
                  TimePoint now, Effects& effects);
  // Why the entry cannot be taken, or "".
  std::string entry_error(const transport::Push::Entry& entry, LocalPartition partition,
                          std::span<const std::byte> inlined) const;
  OpenStep& open_step(std::optional<OpenStep>& slot, Clock clock, TimePoint now);
  void start_read(StepId step, OpenStep& open, LocalPartition partition, bool initial,
                  Effects& effects);
  void payload_taken(StepId step, WorkerState& worker, OpenStep& open, LocalPartition partition,
                     bool initial, Effects& effects);
  void end_initial(const transport::Sender& sender, WorkerState& worker, Effects& effects);
  void close(WorkerId id, WorkerState& worker, transport::Commit commit);
  bool whole(const OpenStep* open) const;

  void settle(WorkerId id, WorkerState& worker, const WorkerNews& news, Effects& effects);
  void drop_open(WorkerId id, WorkerState& worker);
  void hear_of_joiners(std::span<const WorkerNews> news);
  void expect_joiners();
  Newcomers newcomers() const;
  bool place_is_free(WorkerId id) const;
  bool memory_for_one() const;
  Clock joining_clock() const;
  void take_in(const WorkerNews& news);
  bool waits_for_joiner() const;
  void lose_slab(Effects& effects);

  // Does whatever has become possible: updates, the cut, admissions, answers.
  void advance(Effects& effects);
  void pump_updates(Effects& effects);
  bool next_by_push(Effects& effects);
  bool next_by_clock(Effects& effects);
  void take_clock(Sum& sum);
  void start_update(Apply apply, Effects& effects);
  void fold_late(Effects& effects);
  Clock late_before() const;
  Clock clocks_upcoming() const;
  void count_applied(WorkerState& worker);
  void finish_update();
  void admit(Effects& effects);
  void offer_initial(Effects& effects);
  void answer_pulls(Effects& effects);
  void adapt_bound(WorkerId id, WorkerState& worker);
  std::uint64_t most_ended() const noexcept;
  bool far_ahead(const WorkerState& worker) const noexcept;

  // Constant.
  const CoreConfig config_;
  const Gate gate_;
  std::unordered_map<PartitionId, LocalPartition> local_;
  std::uint32_t payloads_per_step_ = 0;  // partitions with elements

  Workers workers_;
  SlabAdmission slabs_;
  CheckpointHold hold_;
  NormExchange norms_;
  std::deque<StepId> queue_;  // per_push: ended, in order of ending
  Clock clock_;               // per_clock: the clock to be applied next
  ClockRule clock_rule_;
  std::vector<StepId> applying_;    // steps in the update (or the fold) that runs
  bool update_runs_ = false;        // or a fold
  bool folding_ = false;            // it is a fold
  bool closes_clock_ = false;       // per_clock: the update ends clock_
  std::uint64_t late_samples_ = 0;  // in the shard's late sum
  TimePoint now_{};                 // of the last input
  std::optional<TimePoint> wake_;   // last asked for
  std::uint64_t updates_ = 0;       // started in this run of the server
  std::uint64_t arrivals_ = 0;
  // Reads of steps that were dropped meanwhile: the slab comes back after the last one.
  struct Draining {
    std::optional<std::uint32_t> slab;
    std::uint32_t reading = 0;
    bool quarantined = false;
  };
  std::map<StepId, Draining> draining_;
  struct Joiner {
    Incarnation incarnation;
    std::optional<Clock> clock;  // nothing while something of its predecessor is to be done
  };
  std::map<WorkerId, Joiner> joiners_;
  bool paused_ = false;
  std::optional<WorkerId> initializer_;
  std::uint32_t initial_reading_ = 0;
  std::optional<transport::Sender> initial_ended_by_;
  bool publishing_initial_ = false;
  bool initialized_ = false;
};

}  // namespace leeway::server
