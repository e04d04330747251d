// The thread that brings snapshots to disk while training goes on.
//
// write() from the endpoint's thread. The two callbacks run on the writer's own thread and only
// hand things on. The destructor finishes nothing: a shard that is half written leaves no trace.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "common/result.h"
#include "server/snapshot.h"
#include "storage/checkpoint_store.h"

namespace leeway::server {

struct WrittenShard {
  std::string id;
  std::string digest;
  std::uint64_t bytes = 0;
  std::uint64_t updates = 0;
  std::map<WorkerId, std::vector<std::byte>> worker_states;
};

// Where a partition of the shard lies in the bundle that it is updated with.
struct CheckpointPart {
  PartitionId id;
  LocalPartition bundle = 0;
  std::uint64_t offset = 0, elements = 0;
  bool shared = false;  // with other partitions
};

class CheckpointWriter {
 public:
  struct Callbacks {
    std::function<void()> released;  // a partition was written: who waits may try again
    std::function<void(const std::string& id, Result<WrittenShard>)> done;
  };
  // `parts`: the shard's partitions, ids ascending. Throws ConfigError when the store cannot be
  // opened.
  CheckpointWriter(const std::string& checkpoint_dir, ServerId server,
                   std::vector<CheckpointPart> parts, Callbacks callbacks);
  ~CheckpointWriter();

  void write(std::shared_ptr<Snapshot> snapshot);

 private:
  void loop(const std::stop_token& stop);
  Result<WrittenShard> write_one(Snapshot& snapshot, const std::stop_token& stop);
  Status write_parts(storage::ShardWriter& writer, Snapshot& snapshot, const std::stop_token& stop);
  void prune(const std::string& newest);

  const std::vector<CheckpointPart> parts_;
  const Callbacks callbacks_;
  std::unique_ptr<storage::ShardStore> store_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::shared_ptr<Snapshot> next_;  // guarded by mutex_
  std::jthread thread_;             // last: joined first
};

}  // namespace leeway::server
