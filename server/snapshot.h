// The shard as it was at a checkpoint's cut, kept while it is written and training goes on: an
// update that comes first to a partition not yet written copies it aside.
//
// claim() on the endpoint's thread, copy_aside() on a computing one, acquire() and release() on the
// checkpoint writer's; guarded by a mutex of its own. The Shard outlives it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "common/ids.h"
#include "server/effects.h"
#include "server/shard.h"

namespace leeway::server {

class Snapshot {
 public:
  // `aside_limit`: bytes that copies may take; beyond it updates wait for the writer.
  Snapshot(TakeSnapshot cut, const Shard& shard, std::uint64_t aside_limit);

  const std::string& id() const noexcept { return cut_.id; }
  const std::map<WorkerId, TakeSnapshot::Worker>& workers() const noexcept { return cut_.workers; }
  std::uint64_t updates() const noexcept { return updates_; }
  std::size_t partitions() const noexcept { return entries_.size(); }
  std::uint64_t bytes() const noexcept { return bytes_; }

  enum class Claim { kFree, kCopyFirst, kWait };
  // May this partition be updated? kCopyFirst: after copy_aside(). kWait: when a release() came.
  Claim claim(LocalPartition p);
  void copy_aside(LocalPartition p);

  // The arrays of a partition, master first; waits while it is being copied. Until release().
  std::vector<std::span<const float>> acquire(LocalPartition p);
  void release(LocalPartition p);
  // The writer failed: nothing needs to be kept any more.
  void abandon();

 private:
  enum class State : std::uint8_t { kUnwritten, kCopying, kCopied, kWriting, kWritten };
  struct Entry {
    State state = State::kUnwritten;
    std::unique_ptr<float[]> aside;
  };
  std::uint64_t partition_bytes(LocalPartition p) const;

  const TakeSnapshot cut_;
  const Shard& shard_;
  const std::uint64_t aside_limit_;
  std::uint64_t updates_ = 0;
  std::uint64_t bytes_ = 0;
  std::mutex mutex_;
  std::condition_variable copied_;
  std::vector<Entry> entries_;     // guarded by mutex_
  std::uint64_t aside_bytes_ = 0;  // guarded by mutex_
};

}  // namespace leeway::server
