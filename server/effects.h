// What the consistency core wants done, in order. Plain values: the engine carries them out, the
// simulator and the tests look at them.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/ids.h"
#include "common/monotonic.h"
#include "common/result.h"
#include "transport/messages.h"

namespace leeway::server {

// One step of one worker; `clock` is the worker's clock before it.
struct StepId {
  WorkerId worker;
  Clock clock;
  friend auto operator<=>(const StepId&, const StepId&) noexcept = default;
};

// Partitions are named by their place on this server here, not by their id in the job. Small ones
// that travel together are one (transport/bundle.h).
using LocalPartition = std::uint32_t;

// Read these bytes of the worker: a gradient into its slab, initial values into the master.
// Answered by Consistency::read_done().
struct ReadPayload {
  StepId step;
  LocalPartition partition = 0;
  std::uint32_t slab = 0;  // meaningless for initial values
  bool initial = false;
  transport::RemoteRange from;
  std::uint64_t bytes = 0;
  std::optional<std::uint32_t> checksum;  // verify it
};

// A small gradient that came in the message itself: copy it into the slab.
struct StorePayload {
  LocalPartition partition = 0;
  std::uint32_t slab = 0;
  std::vector<std::byte> bytes;
};

struct SendTaken {
  StepId step;
  PartitionId partition;
  bool initial = false;
};

struct SendCommitted {
  StepId step;
  transport::Ending ending = transport::Ending::kCommit;
};

// One worker's step as it goes into an update.
struct Contribution {
  StepId step;
  std::uint32_t slab = 0;
  std::vector<float> scales;  // by local partition
  // How many updates this shard has had since the weights were given that the gradient was computed
  // on, those before this one in the same Apply included.
  std::uint64_t staleness = 0;
  float factor = 1;  // its gradient counts so many times: its samples, as parts of its sum's
};

// One update: the sum of the contributions by their factors, in this order, times `weight`.
struct Sum {
  std::vector<Contribution> contributions;
  float weight = 1;
  float rate = 1;  // the learning rate is multiplied by it
  float late = 0;  // not 0: the shard's late sum times this comes before them, and is empty then
};

// Update every partition of the shard by these sums, one after the other, in one pass over memory.
// One Apply at a time; answered by Consistency::apply_done(). Of a partition that NormConfig names,
// make the first pass alone, answered by Consistency::part_summed(); its StepTensor follows.
struct Apply {
  std::vector<Sum> sums;
  Clock clock;  // per_clock: the one that this is the update of
};

// Add these late steps to the shard's late sum, so that their slabs are free before the next clock.
// Exclusive with Apply; answered by Consistency::apply_done().
struct FoldLate {
  std::vector<Contribution> contributions;
  bool first = false;  // the late sum is empty: what its memory holds does not count
};

// lamb: this server's sums of the tensors that it shares with that one.
struct SendNorms {
  ServerId to;
  transport::Norms norms;
};

// lamb: the norms of a whole tensor are known, so the second pass over its partitions here can be
// made. Part of the Apply that runs.
struct StepTensor {
  std::vector<LocalPartition> parts;
  NormSums sums;
};

// A message that is none of this job's; said in the log.
struct Ignore {
  std::string why;
};

// Call Consistency::tick() at that time.
struct WakeAt {
  TimePoint at;
};

// The masters hold the initial values: fill the published copies. Answered by
// Consistency::initial_published().
struct PublishInitial {};

// Write the weights, each partition as soon as the update that runs, if any, has left it; then say
// PULLED. In the order of the entries, which is the order in which the worker needs them.
struct AnswerPull {
  struct Entry {
    LocalPartition partition = 0;
    Version have;
    transport::RemoteRange to;
  };
  WorkerId worker;
  Clock clock;
  std::uint32_t request = 0;
  Clock slowest;
  std::uint64_t bound = 0;  // the one it was answered by
  std::vector<Entry> entries;
};

// The same pull came again after its answer: say PULLED again, move nothing.
struct RepeatAnswer {
  WorkerId worker;
  std::uint32_t request = 0;
};

struct Refuse {
  transport::Sender sender;
  Code code = Code::kRefused;
  std::string text;
};

// The worker is gone: fail its transfers, forget its address.
struct Disconnect {
  WorkerId worker;
};

// The shard is at the cut, this very moment: keep its content until it is written.
struct TakeSnapshot {
  struct Worker {
    Clock clock;
    std::vector<std::byte> state;
  };
  std::string id;
  std::map<WorkerId, Worker> workers;
};

// The job cannot go on with this server.
struct Fault {
  std::string reason;
};

using Effect = std::variant<ReadPayload, StorePayload, SendTaken, SendCommitted, Apply, FoldLate,
                            SendNorms, StepTensor, Ignore, WakeAt, PublishInitial, AnswerPull,
                            RepeatAnswer, Refuse, Disconnect, TakeSnapshot, Fault>;
using Effects = std::vector<Effect>;

}  // namespace leeway::server
