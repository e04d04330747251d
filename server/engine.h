// The shard engine: carries out what the consistency core decides, on the endpoint's thread, with
// the updates on a pool of computing threads and the checkpoints on a thread of their own.
//
// The constructor allocates, registers and restores (it may take long; any thread) and throws
// ConfigError when that cannot be. After it view() and report() may be called from any one thread.
// The destructor stops everything, the endpoint included.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/job_settings.h"
#include "kernels/optimizer.h"
#include "server/checkpoint_writer.h"
#include "server/compute_pool.h"
#include "server/consistency.h"
#include "server/shard.h"
#include "server/snapshot.h"
#include "server/transfer_queue.h"
#include "server/update_rule.h"
#include "transport/bundle.h"
#include "transport/endpoint.h"
#include "transport/host_memory.h"
#include "transport/outbox.h"

namespace leeway::server {

struct EngineConfig {
  struct Partition {
    PartitionId id;
    std::uint32_t tensor = 0;
    std::uint64_t begin = 0;
    std::uint64_t elements = 0;
  };
  struct Tensor {
    std::string name;
    Shape shape;
    std::vector<ServerId> others;  // other servers that have a part of it
  };
  struct Server {
    Incarnation incarnation;
    std::vector<std::byte> address;
  };
  ServerId server;
  Incarnation incarnation;
  std::uint64_t job = 0;
  JobSettings settings;
  std::uint32_t servers = 1;
  std::uint32_t places = 0;           // for workers, those that are there included
  std::vector<Tensor> tensors;        // of the job
  std::vector<Partition> partitions;  // of this server, ids ascending
  std::map<WorkerId, CoreConfig::Worker> workers;
  std::map<ServerId, Server> others;  // the job's other servers
  std::string checkpoint_dir;         // "" = none
  std::string restore;                // checkpoint id, "" = from initial values
  unsigned threads = 1;
  std::optional<std::uint64_t> kill_at_step;  // injected fault
  // For another server's norms. Under server_memory_limit one that writes a checkpoint is long.
  milliseconds norm_patience{600'000};
};

// What of the scheduler's view concerns the engine.
struct EngineView {
  struct Worker {
    WorkerNews news;
    std::vector<std::byte> address;
  };
  enum class Order : std::uint8_t { kNone, kHold, kCut };
  std::int64_t epoch = 0;
  std::vector<Worker> workers;
  std::optional<WorkerId> initializer;
  bool paused = false;
  Order order = Order::kNone;
  std::string checkpoint;
  std::map<WorkerId, Clock> cut;
  JobSettings settings;  // with what was changed while the job runs
};

struct EngineReport {
  std::int64_t epoch = 0;
  std::map<WorkerId, Clock> applied, resolving;
  // Of a joiner that this server has no memory for, or no way to, none.
  std::map<WorkerId, std::optional<Clock>> joining;
  std::map<WorkerId, float> last_factors;
  std::map<WorkerId, std::uint32_t> last_samples;
  std::string held;
  std::optional<WrittenShard> durable;
  std::string checkpoint_error;
  std::uint64_t updates = 0, bytes_read = 0, bytes_written = 0;
  // Of all updates so far: from beginning to end, and what the computing threads ran for them.
  double update_seconds = 0, update_processor_seconds = 0;
  std::uint64_t memory_bytes = 0, elements = 0;
  std::string waiting;
  std::string fault;  // why this server gives up
  bool busy = false;  // something that others wait for is under way: report again soon
};

class Engine {
 public:
  Engine(std::unique_ptr<transport::Endpoint> endpoint, EngineConfig config);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void view(EngineView view);
  // kTimedOut when the endpoint's thread does not answer.
  Result<EngineReport> report();
  const ShardLayout& layout() const noexcept { return layout_; }

 private:
  struct Group;
  struct Update;        // the one that runs
  struct PullTransfer;  // weights on their way to a worker

  // Start.
  std::unique_ptr<Consistency> make_core() const;
  NormConfig share_norms() const;
  void meet_servers();
  void restore();
  void restore_partition(const storage::CheckpointReader& reader, const storage::Manifest& manifest,
                         const EngineConfig::Partition& partition, LocalPartition bundle,
                         std::uint64_t offset);
  void open_checkpoints();

  // Everything below on the endpoint's thread.
  void on_frame(std::span<const std::byte> frame);
  void on_message(transport::Message& message);
  void stray(const std::string& why);
  void on_view(const EngineView& view);
  void run(Effects effects);
  void carry_out(ReadPayload& effect);
  void start_read(const ReadPayload& read, bool again);
  bool map_payload(const ReadPayload& read);
  void release_mapped(std::uint32_t slab);
  void release_mapped_of_the_abandoned(StepId step);
  void release_mapped_of_the_gone();
  void verify(const ReadPayload& read, std::shared_ptr<const std::byte> payload, bool again);
  void keep_in_slab(LocalPartition partition, std::uint32_t slab);
  void verified(const ReadPayload& read, bool again, bool good);
  void end_read(const ReadPayload& read, transport::Outcome outcome);
  void carry_out(StorePayload& effect);
  void carry_out(SendTaken& effect);
  void carry_out(SendCommitted& effect);
  void carry_out(Apply& effect);
  void carry_out(FoldLate& effect);
  void carry_out(SendNorms& effect);
  void carry_out(StepTensor& effect);
  void carry_out(Ignore& effect);
  void carry_out(WakeAt& effect);
  void carry_out(PublishInitial& effect);
  void carry_out(AnswerPull& effect);
  void carry_out(RepeatAnswer& effect);
  void carry_out(Refuse& effect);
  void carry_out(Disconnect& effect);
  void carry_out(TakeSnapshot& effect);
  void carry_out(Fault& effect);

  void flush();
  void flush_soon();
  void flush_taken();
  void send(WorkerId worker, const transport::Body& body);
  void send_frame(WorkerId worker, const transport::Outbox::Frame& frame);
  // Who has the worker's place now, or nothing.
  Incarnation incarnation_of(WorkerId worker) const;
  void reach(const EngineView::Worker& worker);
  void send_pulled(WorkerId worker, const transport::Pulled& pulled);
  void write_partition(const std::shared_ptr<PullTransfer>& pull, const AnswerPull::Entry& entry);
  void queue_write(const std::shared_ptr<PullTransfer>& pull, const AnswerPull::Entry& entry,
                   const Shard::Reading& reading);
  void finish_pull(const std::shared_ptr<PullTransfer>& pull);
  TimePoint deadline() const;

  void begin_update(Update update);
  void continue_update();
  void compute(Group group);
  struct Outcome;  // of a group's task
  void group_done(const Outcome& outcome, double processor_seconds);
  void watch_waiting();

  const EngineConfig config_;
  // To the core and the shard, a partition is one of these.
  const std::vector<transport::Bundle> bundles_;
  const ShardLayout layout_;
  UpdateRule rule_;
  // Memory first: transfers and tasks end before it goes.
  transport::RegisteredMemory masters_, published_, slabs_;
  transport::HostMemory state_, then_;
  std::unique_ptr<Shard> shard_;
  std::unique_ptr<Consistency> core_;

  std::map<WorkerId, transport::Peer> peers_;
  std::map<ServerId, transport::Peer> servers_;  // that share tensors' norms with this one
  Effects pending_;                              // effects not carried out yet, in order
  bool running_ = false;
  transport::Outbox outbox_;
  bool in_frame_ = false;  // its end flushes
  // Payloads that lie where the worker made them, by the slab that they would fill else.
  struct Mapped {
    StepId step;
    std::map<LocalPartition, std::shared_ptr<const std::byte>> payloads;
  };
  std::map<std::uint32_t, Mapped> mapped_;
  TransferQueue reads_, writes_;
  std::map<StepId, std::vector<PartitionId>> taken_;  // acknowledgements to be sent together
  std::map<WorkerId, transport::Pulled> last_answers_;
  std::map<WorkerId, std::string> refusals_;  // the last ones
  std::set<WorkerId> unreachable_;            // joiners
  std::set<WorkerId> answering_;              // weights are on their way to them
  std::vector<LocalPartition> order_;         // of updates: what the next forward pass needs first
  std::unique_ptr<Update> update_;
  std::shared_ptr<Snapshot> snapshot_;  // being written
  EngineReport report_;                 // the fields that change by events
  TimePoint said_waiting_{};
  std::uint64_t strays_ = 0;  // messages that were none
  bool stopping_ = false;

  ComputePool pool_;
  std::unique_ptr<CheckpointWriter> writer_;
  std::unique_ptr<transport::Endpoint> endpoint_;
};

}  // namespace leeway::server
