// A whole job on one seeded virtual network: the real consistency cores, and small models of
// workers, of the scheduler's resolve and checkpoint protocols, and of memory. Messages are
// delayed, reordered and repeated; workers die at any
// moment, others join in their place or as more, and now and then the whole job dies, which starts
// again from its last checkpoint. After every
// event the invariants of the protocol are checked; the first one that breaks is a SimulationError.
//
//   staleness   an answered pull holds every step that the bound asks for
//   atomic      a step counts on every server or on none, and only when all its payloads were read
//   once        no server applies a step twice
//   monotonic   progress of a live worker never goes back
//   cut         every server's snapshot of a checkpoint holds exactly the same steps
//   samples     every contribution weighs as many samples as it has
//   late        what has come before a clock is applied is in by then, also what belongs to an
//               earlier one
//   join        a joiner belongs to the same clocks on every server, and to none that was applied
//   one cut     where consistent = true is allowed, all servers answer a pull with the same updates
//   norms       (lamb) the norms of a tensor on several servers are of one clock and the same steps
//   progress    everybody who lives comes to the end
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "server/consistency.h"
#include "tests/sim/event_queue.h"

namespace leeway::sim {

struct SimulationError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct WorldOptions {
  std::uint64_t seed = 1;
  server::CoreConfig::PlantedBugs bugs;
  bool one_slab = false;  // fewer than SlabRule::minimum() asks for
};

// What the schedules came by: a promise that nothing tried is not kept.
struct Happened {
  std::uint64_t steps = 0, late = 0, folded = 0, checkpoints = 0, restarts = 0, deaths = 0,
                widened = 0,  // pulls by a bound above LOW
      norms = 0,              // of tensors on several servers
      joins = 0, grown = 0;   // of the joins, not in anybody's place
};

class World {
 public:
  explicit World(const WorldOptions& options);
  void run();  // throws SimulationError
  const Happened& happened() const { return happened_; }

 private:
  using StepId = server::StepId;

  struct Worker {
    WorkerId id;
    std::uint64_t clock = 0;  // the step it computes, or waits to compute
    std::uint64_t life = 0;   // how many have had its place before
    bool alive = true, grown = false, crash_at_random = false, finished = false,
         initial_done = false;
    std::uint32_t request = 0;
    std::map<std::size_t, std::uint64_t> answered;   // servers that answered the pull: updates
    std::set<std::uint32_t> initial_taken;           // partitions of its initial values
    std::set<std::size_t> initial_pending;           // servers that have not confirmed these
    bool weights = false;                            // of its next step are there
    std::set<std::uint32_t> untaken;                 // partitions of the step not taken yet
    std::map<std::size_t, std::uint64_t> confirmed;  // by server: steps that it confirmed
    bool pushing = false;
    bool abandon = false, early = false;  // how the step will end
    std::uint64_t slowness = 1;
  };
  struct Snapshot {
    std::set<StepId> steps;
    std::map<WorkerId, std::uint64_t> clocks;
  };
  struct Server {
    std::unique_ptr<server::Consistency> core;
    std::set<StepId> visible, applying, read_whole;
    std::set<StepId> folded;                     // in the late sum
    std::set<StepId> folding;                    // on their way there
    std::set<StepId> ended;                      // committed here
    std::vector<std::function<void()>> answers;  // of pulls, after the update
    std::map<StepId, std::size_t> payloads;      // read so far
    std::map<WorkerId, Clock> progress;          // as last seen
    std::uint64_t cut_clocks = 0;                // applied so far when a cut last asked for one
    std::map<WorkerId, Clock> most_ended;  // that abandoned step included which its death undid
    std::uint64_t view = 0;                // the news that it acts on
    std::uint64_t updates = 0;             // in this run
    Clock clock;                           // of the update that runs
    std::size_t unstepped = 0;             // partitions of it that wait for norms
    int stage = 0;                         // of the checkpoint, by those news
    std::map<std::string, Snapshot> snapshots;
  };
  struct News {
    std::uint64_t version = 1;
    std::vector<server::WorkerNews> workers;
    std::optional<WorkerId> initializer;
    int stage = 0;  // 0 none, 1 hold, 2 cut
    std::string checkpoint;
    std::map<WorkerId, Clock> cut;
  };
  struct Joiner {
    std::uint64_t told = 0;               // the news from which on servers know of it; 0: not yet
    std::uint64_t taken_in = 0;           // and from which on it is live
    std::map<std::size_t, Clock> clocks;  // what servers report
  };
  struct Report {
    std::uint64_t view = 0;
    std::map<WorkerId, Clock> resolving, applied;
    std::map<WorkerId, std::optional<Clock>> joining;
    std::map<WorkerId, std::uint32_t> samples;
    std::string held;
  };

  [[noreturn]] void broken(const std::string& what) const;
  Incarnation incarnation(WorkerId worker) const;  // of whoever has its place
  Incarnation incarnation(WorkerId worker, std::uint64_t life) const;
  transport::Sender sender(const Worker& worker) const;
  Incarnation incarnation_of_server(std::size_t server) const;
  std::vector<PartitionId> shard(std::size_t server) const;

  // The network.
  void to_server(const Worker& from, std::size_t server, transport::Body body);
  void to_worker(std::size_t server, WorkerId worker, std::function<void(Worker&)> event);
  void later(Worker& worker, std::uint64_t span, std::function<void()> event);

  // Workers.
  void start_pull(Worker& worker);
  void start_push(Worker& worker);
  void push_to(Worker& worker, std::size_t server, bool initial);
  void taken(Worker& worker, PartitionId partition, bool initial);
  void maybe_commit(Worker& worker);
  void crash(Worker& worker);
  void finish(Worker& worker);

  // Servers.
  std::unique_ptr<server::Consistency> make_core(std::size_t server, bool restored);
  void carry_out(std::size_t server, const server::Effects& effects);
  void apply(std::size_t server, const server::Apply& apply);
  void applied(std::size_t server);
  server::NormConfig norm_config(std::size_t server) const;
  NormSums norms_of(std::size_t server, server::LocalPartition part, Clock clock,
                    const std::set<StepId>& steps) const;
  void send_norms(std::size_t server, const server::SendNorms& norms);
  void step_tensor(std::size_t server, const server::StepTensor& step);
  void add(std::size_t server, const server::Sum& sum, Clock clock);
  void check_weights(const Server& server, const server::Sum& sum) const;
  std::uint32_t samples_of(StepId step) const;
  void fold(std::size_t server, const server::FoldLate& fold);
  bool cutting(const Server& server) const;
  void answer(std::size_t server, const server::AnswerPull& pull);
  void pulled(std::size_t server, WorkerId worker, std::uint32_t request, std::uint64_t updates);
  void snapshot(std::size_t server, const server::TakeSnapshot& taken);
  void check_progress(Server& server) const;
  bool holds(const Server& server, WorkerId worker, std::uint64_t clock) const;

  // The scheduler.
  void publish();
  void push_initial(Worker& worker);
  void report(std::size_t server);
  void on_report(std::size_t server, const Report& report);
  void begin_join(WorkerId worker);
  void begin_to_grow();
  void on_joining(std::size_t server, const Report& report);
  void forget_joiner(WorkerId worker);
  void take_in(WorkerId worker, Joiner& joiner);
  void start_joined(Worker& worker);
  bool somebody_joins() const;
  bool everybody_left() const;
  void maybe_checkpoint();
  void restart();
  bool everybody_done() const;
  void check_end() const;

  EventQueue events_;
  server::CoreConfig::PlantedBugs bugs_;
  bool per_clock_;
  std::uint32_t quorum_ = 0;
  std::size_t norm_parts_ = 0;  // lamb: partitions of each server that are parts of one tensor
  Grace grace_;
  std::uint32_t least_slabs_ = 1, slabs_ = 1;
  std::uint64_t run_ = 0;          // of the job: restarts so far
  std::uint64_t first_clock_ = 0;  // of this run
  bool spare_slabs_;               // losing one with its worker leaves enough for the others
  Bound staleness_;
  std::uint64_t steps_;  // that each worker does
  std::size_t server_count_;
  std::vector<Worker> workers_;
  std::vector<Server> servers_;
  std::set<StepId> abandoned_;  // by the worker's own word
  std::set<StepId> commit_sent_;
  std::set<StepId> never_;  // between the end of a worker and the first step of the next there
  std::map<StepId, std::uint32_t> samples_;  // by the worker's word
  News news_;
  std::map<WorkerId, Joiner> joiners_;
  std::vector<std::uint64_t> server_views_;            // as the scheduler knows them
  std::map<WorkerId, std::uint64_t> resolving_since_;  // news
  std::map<WorkerId, std::map<std::size_t, std::pair<Clock, std::uint32_t>>> resolve_reports_;
  std::map<std::size_t, std::map<WorkerId, Clock>> held_reports_;
  std::string committed_checkpoint_;  // the last, of this run
  std::uint64_t checkpoints_ = 0;
  Happened happened_;
};

}  // namespace leeway::sim
