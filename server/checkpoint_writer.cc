#include "server/checkpoint_writer.h"

#include <pthread.h>

#include <optional>
#include <utility>

#include "common/log.h"

namespace leeway::server {

CheckpointWriter::CheckpointWriter(const std::string& checkpoint_dir, ServerId server,
                                   std::vector<CheckpointPart> parts, Callbacks callbacks)
    : parts_(std::move(parts)),
      callbacks_(std::move(callbacks)),
      store_(value_or_throw(storage::ShardStore::open(checkpoint_dir, server))),
      thread_([this](const std::stop_token& stop) {
        pthread_setname_np(pthread_self(), "checkpoint");
        loop(stop);
      }) {}

CheckpointWriter::~CheckpointWriter() {
  thread_.request_stop();
  wake_.notify_all();
}

void CheckpointWriter::write(std::shared_ptr<Snapshot> snapshot) {
  {
    const std::lock_guard lock(mutex_);
    next_ = std::move(snapshot);
  }
  wake_.notify_all();
}

void CheckpointWriter::loop(const std::stop_token& stop) {
  while (true) {
    std::shared_ptr<Snapshot> snapshot;
    {
      std::unique_lock lock(mutex_);
      if (!wake_.wait(lock, stop, [&] { return next_ != nullptr; })) return;
      snapshot = std::move(next_);
    }
    Result<WrittenShard> written = write_one(*snapshot, stop);
    if (!written) snapshot->abandon();
    callbacks_.released();
    if (written) prune(snapshot->id());
    callbacks_.done(snapshot->id(), std::move(written));
  }
}

Result<WrittenShard> CheckpointWriter::write_one(Snapshot& snapshot, const std::stop_token& stop) {
  auto writer = store_->begin(snapshot.id(), snapshot.bytes());
  if (!writer) return tl::unexpected(writer.error());
  if (Status written = write_parts(**writer, snapshot, stop); !written)
    return tl::unexpected(written.error());
  WrittenShard shard{.id = snapshot.id(), .updates = snapshot.updates()};
  for (const auto& [id, worker] : snapshot.workers()) {
    if (Status added = (*writer)->add_worker(id.value(), {worker.clock, worker.state}); !added)
      return tl::unexpected(added.error());
    shard.worker_states[id] = worker.state;
  }
  auto finished = (*writer)->finish();
  if (!finished) return tl::unexpected(finished.error());
  shard.digest = std::move(finished->digest);
  shard.bytes = finished->bytes;
  return shard;
}

// In the order of ids, which is the store's. Members of one bundle may lie far apart in it, and an
// update must not wait for all of them: they are copied at the first.
Status CheckpointWriter::write_parts(storage::ShardWriter& writer, Snapshot& snapshot,
                                     const std::stop_token& stop) {
  std::optional<LocalPartition> copied;
  std::vector<std::vector<float>> copies;  // of the arrays of that bundle
  for (const CheckpointPart& part : parts_) {
    if (stop.stop_requested()) return fail(Code::kCancelled, "the server is stopping");
    std::vector<std::span<const float>> arrays;
    const auto release = [&] {
      snapshot.release(part.bundle);
      callbacks_.released();
    };
    if (part.shared) {
      if (copied != part.bundle) {
        copies.clear();
        for (const auto array : snapshot.acquire(part.bundle))
          copies.emplace_back(array.begin(), array.end());
        copied = part.bundle;
        release();
      }
      arrays.assign(copies.begin(), copies.end());
    } else {
      arrays = snapshot.acquire(part.bundle);
    }
    Status added;
    for (std::size_t kind = 0; kind < arrays.size() && added; ++kind)
      added = writer.add(part.id, static_cast<storage::ArrayKind>(kind),
                         arrays[kind].subspan(part.offset, part.elements));
    if (!part.shared) release();
    if (!added) return added;
  }
  return {};
}

// Shards of checkpoints that the scheduler has forgotten meanwhile; this one it does not know yet.
void CheckpointWriter::prune(const std::string& newest) {
  if (const Status pruned = store_->prune_uncommitted(newest); !pruned)
    log::warning("old checkpoints stay on disk: {}", pruned.error().message);
}

}  // namespace leeway::server
