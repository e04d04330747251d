// A server's store: DIR/server-NNN is the database, DIR/server-NNN/incoming holds the table files
// that are being written. That folder is on the database's own file system, whatever is mounted
// where, and what a crash left in it is removed at the next start. RocksDB itself removes tables
// that were linked into the database and never named by it.
#include <fmt/format.h>
#include <rocksdb/convenience.h>
#include <rocksdb/db.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>

#include "common/log.h"
#include "storage/checkpoint_store.h"
#include "storage/database.h"
#include "storage/manifest_reader.h"
#include "storage/records.h"
#include "storage/shard_writer.h"

namespace leeway::storage {
namespace {

// Beside the payload: headers, keys and index take 0.02 %; the rest is room for RocksDB's own
// files.
std::uint64_t bytes_on_disk(std::uint64_t payload) { return payload + payload / 512 + (4u << 20); }

rocksdb::Status find_ids(rocksdb::DB& db, std::vector<std::string>& ids) {
  rocksdb::ReadOptions options;
  options.fill_cache = false;
  const std::unique_ptr<rocksdb::Iterator> it(db.NewIterator(options));
  for (it->SeekToFirst(); it->Valid(); it->Seek(id_end(ids.back()))) {
    std::optional<std::string> id = id_of_key(it->key().ToStringView());
    if (!id) return rocksdb::Status::Corruption("a key is not one of Leeway's");
    ids.push_back(std::move(*id));
  }
  return it->status();
}

// A checkpoint is one file, which goes as a whole; the tombstone is for what would remain.
rocksdb::Status remove_id(rocksdb::DB& db, const std::string& id) {
  const std::string begin = id_begin(id);
  const std::string end = id_end(id);
  const rocksdb::Slice from(begin);
  const rocksdb::Slice to(end);
  rocksdb::WriteOptions options;
  options.disableWAL = true;
  rocksdb::Status status =
      rocksdb::DeleteFilesInRange(&db, db.DefaultColumnFamily(), &from, &to, false);
  if (status.ok()) status = db.DeleteRange(options, db.DefaultColumnFamily(), from, to);
  if (status.ok()) status = db.Flush(rocksdb::FlushOptions());
  if (!status.ok()) return status;
  rocksdb::CompactRangeOptions compact;
  compact.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForce;
  return db.CompactRange(compact, &from, &to);
}

// Under which id a checkpoint knows a shard of the store; "": it has none there.
using ShardNamed = std::function<std::string(const Manifest&)>;

class RocksShardStore : public ShardStore {
 public:
  RocksShardStore(std::string checkpoint_dir, std::shared_ptr<Database> database, ShardNamed named)
      : checkpoint_dir_(std::move(checkpoint_dir)),
        incoming_(database->directory() + "/incoming"),
        database_(std::move(database)),
        named_(std::move(named)) {}

  Status clean() {
    std::error_code failed;
    std::filesystem::remove_all(incoming_, failed);
    if (!failed) std::filesystem::create_directories(incoming_, failed);
    if (failed)
      return fail(Code::kInternal, fmt::format("cannot clear {}: {}", incoming_, failed.message()));
    return prune_uncommitted("");
  }

  Result<std::unique_ptr<ShardWriter>> begin(const std::string& checkpoint_id,
                                             std::uint64_t expected_bytes) override {
    if (Status good = check_checkpoint_id(checkpoint_id); !good)
      return tl::unexpected(good.error());
    if (Status cleared = clear_id(checkpoint_id); !cleared) return tl::unexpected(cleared.error());
    if (Status room = check_free_space(fmt::format("cannot write checkpoint '{}'", checkpoint_id),
                                       database_->directory(), bytes_on_disk(expected_bytes));
        !room)
      return tl::unexpected(room.error());
    return open_shard_writer(database_, fmt::format("{}/{}.sst", incoming_, next_file_++),
                             checkpoint_id);
  }

  Status prune_uncommitted(const std::string& but) override {
    const Result<std::vector<Manifest>> manifests = read_manifests(checkpoint_dir_);
    if (!manifests) return tl::unexpected(manifests.error());
    std::vector<std::string> keep{but};
    for (const Manifest& manifest : *manifests) keep.push_back(named_(manifest));
    return prune(keep);
  }

  Status prune(const std::vector<std::string>& keep) override {
    return database_->run("cannot delete old checkpoints", [&](rocksdb::DB& db) {
      std::vector<std::string> ids;
      rocksdb::Status status = find_ids(db, ids);
      for (const std::string& id : ids) {
        if (!status.ok()) break;
        if (std::find(keep.begin(), keep.end(), id) != keep.end()) continue;
        log::debug("{}: deleting the shard of checkpoint '{}'", database_->directory(), id);
        status = remove_id(db, id);
      }
      return status;
    });
  }

 private:
  // A shard of this name may remain from a checkpoint that was not committed; a committed one is
  // never overwritten.
  Status clear_id(const std::string& id) {
    bool present = false;
    const std::string what = fmt::format("cannot begin checkpoint '{}'", id);
    const Status looked = database_->run(what, [&](rocksdb::DB& db) {
      std::vector<std::string> ids;
      rocksdb::Status status = find_ids(db, ids);
      present = std::find(ids.begin(), ids.end(), id) != ids.end();
      return status;
    });
    if (!looked || !present) return looked;
    const Result<std::vector<Manifest>> manifests = read_manifests(checkpoint_dir_);
    if (!manifests) return tl::unexpected(manifests.error());
    for (const Manifest& manifest : *manifests)
      if (named_(manifest) == id)
        return fail(Code::kAlreadyExists,
                    fmt::format("{}: it is already committed in {}", what, checkpoint_dir_));
    return database_->run(what, [&](rocksdb::DB& db) { return remove_id(db, id); });
  }

  const std::string checkpoint_dir_;
  const std::string incoming_;
  const std::shared_ptr<Database> database_;
  const ShardNamed named_;
  std::atomic<std::uint64_t> next_file_{1};
};

Result<std::unique_ptr<ShardStore>> open_store(const std::string& checkpoint_dir,
                                               const std::string& directory, ShardNamed named) {
  Result<std::unique_ptr<Database>> database = Database::open(directory, /*small_values=*/false);
  if (!database) return tl::unexpected(database.error());
  auto store =
      std::make_unique<RocksShardStore>(checkpoint_dir, std::move(*database), std::move(named));
  if (Status cleaned = store->clean(); !cleaned) return tl::unexpected(cleaned.error());
  return store;
}

}  // namespace

Result<std::unique_ptr<ShardStore>> ShardStore::open(const std::string& checkpoint_dir,
                                                     ServerId server) {
  return open_store(checkpoint_dir, shard_directory(checkpoint_dir, server),
                    [](const Manifest& manifest) { return manifest.id; });
}

Result<std::unique_ptr<ShardStore>> ShardStore::open(const std::string& checkpoint_dir,
                                                     WorkerId worker) {
  return open_store(checkpoint_dir, shard_directory(checkpoint_dir, worker),
                    [worker](const Manifest& manifest) {
                      const auto known = manifest.workers.find(worker.value());
                      const bool has = known != manifest.workers.end() && known->second.residual;
                      return has ? known->second.residual->shard : "";
                    });
}

}  // namespace leeway::storage
