// What the engine's source files share and nobody else needs.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "server/engine.h"

namespace leeway::server {

// Enough to keep a NIC busy, in each direction; more only lengthens each transfer and leaves the
// caches.
inline constexpr std::size_t kTransfersInFlight = 16;
inline constexpr std::uint64_t kBytesInFlight = std::uint64_t{8} << 20;

// Partitions that are updated in one task.
struct Engine::Group {
  std::vector<LocalPartition> partitions;
  std::vector<LocalPartition> copy_first;  // those of them that a snapshot needs
  std::optional<NormSums> norms;           // of their tensor: the second pass over its parts
};

struct Engine::Outcome {
  std::vector<LocalPartition> updated;
  std::vector<std::pair<LocalPartition, NormSums>> summed;  // the first pass is done
};

// One update of the whole shard, or the first publication (no sums). Partitions start as soon as
// nothing reads their spare copy and no snapshot needs their content; pulls that want what the
// update brings are written partition by partition.
struct Engine::Update {
  struct Write {
    std::shared_ptr<PullTransfer> pull;
    AnswerPull::Entry entry;
  };
  Apply apply;
  kernels::Hyper hyper;
  bool initial = false;
  TimePoint begun = MonotonicClock::now();
  std::vector<LocalPartition> waiting;
  std::size_t unfinished = 0;
  std::vector<bool> done;                            // by partition
  std::vector<std::vector<Write>> writes;            // by partition: when it is done
  std::vector<std::shared_ptr<PullTransfer>> pulls;  // that it brings something
};

struct Engine::PullTransfer {
  WorkerId worker;
  Incarnation incarnation;
  transport::Pulled pulled;
  std::size_t unfinished = 0;
  std::string error;
};

}  // namespace leeway::server
