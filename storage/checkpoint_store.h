// Checkpoints on disk. A checkpoint directory holds
//
//   manifest/      the scheduler's RocksDB: which checkpoints are committed, and what is in each
//   server-NNN/    one RocksDB per server: the shards it wrote
//   worker-NNN/    one RocksDB per worker that keeps a residual (gradient_codec = topk): what it
//   had
//                  not sent yet, a shard in form
//
// A shard is written as one SST file in key order and ingested, so that a checkpoint costs what raw
// writes cost; a half-written one leaves no key behind. Only what the manifest names exists: shards
// of checkpoints that were never committed are deleted when a store is opened for writing.
//
// Errors name the file or directory and the remedy; a damaged record is kDataLoss, never a crash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/result.h"
#include "common/tensor.h"

namespace leeway::storage {

// Which FP32 array of a partition.
enum class ArrayKind : std::uint8_t { kMaster = 0, kState0 = 1, kState1 = 2, kResidual = 3 };

struct ManifestTensor {
  std::string name;
  Shape shape;
};

struct ManifestPartition {
  std::uint32_t tensor = 0;  // index into tensors
  std::uint64_t begin = 0;   // first element
  std::uint64_t elements = 0;
  std::uint32_t server = 0;  // whose store has it
};

// A worker's residual at the cut, in that worker's store.
struct ManifestResidual {
  std::string shard;   // its id there
  std::string digest;  // what its ShardWriter::finish returned
};

struct ManifestWorker {
  Clock clock;
  std::vector<std::byte> state;
  std::optional<ManifestResidual> residual;
};

// All that makes a committed checkpoint. Tensors in name order, partitions in tensor order, then
// begin.
struct Manifest {
  std::string id;
  std::uint64_t created_unix_s = 0;
  std::vector<ManifestTensor> tensors;
  std::vector<ManifestPartition> partitions;
  std::uint32_t state_arrays = 0;
  std::uint64_t updates = 0;  // that every partition has had: the optimizer's step count
  std::map<std::string, std::string> settings;  // effective job settings
  std::map<std::uint32_t, ManifestWorker> workers;
  std::vector<std::string> shard_digests;  // by server: what its ShardWriter::finish returned
  std::uint64_t bytes = 0;
};

// The scheduler's side. One process at a time (the second is refused by name).
class ManifestStore {
 public:
  static Result<std::unique_ptr<ManifestStore>> open(const std::string& checkpoint_dir);
  virtual ~ManifestStore() = default;
  virtual Status commit(const Manifest& manifest) = 0;     // durable when it returns
  virtual Result<std::vector<Manifest>> list() const = 0;  // oldest first
  virtual Status forget(const std::string& id) = 0;
  // Small facts the scheduler keeps across restarts ("incarnation", "job", ...).
  virtual Status put(const std::string& key, const std::string& value) = 0;
  virtual Result<std::optional<std::string>> get(const std::string& key) const = 0;
};

// Writes the shard of one server. Not thread-safe. Destroyed before finish(): nothing remains.
class ShardWriter {
 public:
  struct Finished {
    std::string digest;  // over all records in order
    std::uint64_t bytes = 0;
  };
  virtual ~ShardWriter() = default;
  // In ascending (partition, kind) order; each array whole, any size (also over 4 GiB, also 0).
  virtual Status add(PartitionId partition, ArrayKind kind, std::span<const float> values) = 0;
  virtual Status add_worker(std::uint32_t worker, const ManifestWorker& progress) = 0;
  virtual Result<Finished> finish() = 0;  // durable when it returns
};

// The store of one server or worker, open for writing while it lives.
class ShardStore {
 public:
  static Result<std::unique_ptr<ShardStore>> open(const std::string& checkpoint_dir,
                                                  ServerId server);
  static Result<std::unique_ptr<ShardStore>> open(const std::string& checkpoint_dir,
                                                  WorkerId worker);
  virtual ~ShardStore() = default;
  // Checks free disk space for `expected_bytes` first.
  virtual Result<std::unique_ptr<ShardWriter>> begin(const std::string& checkpoint_id,
                                                     std::uint64_t expected_bytes) = 0;
  // Deletes every shard that is not in `keep`.
  virtual Status prune(const std::vector<std::string>& keep) = 0;
  // Deletes every shard that no committed checkpoint names, but this one.
  virtual Status prune_uncommitted(const std::string& but) = 0;
};

// Reads committed checkpoints; works beside a running job. Thread-safe.
class CheckpointReader {
 public:
  static Result<std::unique_ptr<CheckpointReader>> open(const std::string& checkpoint_dir);
  virtual ~CheckpointReader() = default;
  virtual const std::vector<Manifest>& manifests() const = 0;          // committed, oldest first
  virtual Result<Manifest> manifest(const std::string& id) const = 0;  // "" = the newest
  // Fills `out` with elements [begin, begin + out.size()) of a tensor's array, whatever partitions
  // and servers they were saved in. Every record's checksum is verified on the way.
  virtual Status read(const Manifest& manifest, std::uint32_t tensor, ArrayKind kind,
                      std::uint64_t begin, std::span<float> out) const = 0;
  // Fills `out` with the whole of a tensor's residual. The worker has one in the manifest.
  virtual Status read_residual(const Manifest& manifest, WorkerId worker, std::uint32_t tensor,
                               std::span<float> out) const = 0;
  // Reads and checks everything: records, shard digests, nothing missing, nothing of another
  // checkpoint. The error names what is damaged.
  virtual Status verify(const Manifest& manifest) const = 0;
  // One hash over all master tensors in name order (names, shapes, FP32 bytes): the same whatever
  // the number of servers and partitions. 32 hex digits (XXH3-128).
  virtual Result<std::string> digest(const Manifest& manifest) const = 0;
};

}  // namespace leeway::storage
