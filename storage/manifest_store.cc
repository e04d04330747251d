// Keys of the manifest store:
//
//   'm', u64 sequence (big-endian), id    a committed checkpoint; the value is manifest_codec.cc's.
//                                         Sequences count up, so the order is that of the commits
//                                         whatever the wall clock did.
//   'f', name                             a fact of the scheduler; the value is the scheduler's.
//
// A write is a batch into the memory table (no log: see database.h), then a flush, which is durable
// when it returns and appears whole or not at all.
#include <fmt/format.h>
#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <filesystem>

#include "storage/checkpoint_store.h"
#include "storage/database.h"
#include "storage/manifest_codec.h"
#include "storage/manifest_reader.h"
#include "storage/records.h"

namespace leeway::storage {
namespace {

constexpr char kManifestTag = 'm';
constexpr char kFactTag = 'f';
constexpr std::size_t kManifestPrefixBytes = 1 + sizeof(std::uint64_t);
constexpr std::uint64_t kCommitReserveBytes = 4u << 20;  // what a flush and a new log may take

std::string manifest_key(std::uint64_t sequence, const std::string& id) {
  std::string key(1, kManifestTag);
  for (int shift = 56; shift >= 0; shift -= 8) key += static_cast<char>(sequence >> shift);
  return key + id;
}

std::uint64_t sequence_of(std::string_view key) {
  std::uint64_t sequence = 0;
  for (std::size_t i = 1; i < kManifestPrefixBytes; ++i)
    sequence = sequence << 8 | static_cast<unsigned char>(key[i]);
  return sequence;
}

// Calls `visit(key, value)` for every manifest in commit order, until it returns an error.
template <typename Visit>
Status each_manifest(rocksdb::DB& db, const std::string& directory, Visit visit) {
  rocksdb::ReadOptions options;
  options.fill_cache = false;
  const std::unique_ptr<rocksdb::Iterator> it(db.NewIterator(options));
  for (it->Seek(rocksdb::Slice(&kManifestTag, 1)); it->Valid(); it->Next()) {
    const std::string_view key = it->key().ToStringView();
    if (key[0] != kManifestTag) break;
    if (key.size() <= kManifestPrefixBytes)
      return fail(Code::kDataLoss, fmt::format("a key in {} is damaged", directory));
    if (Status visited = visit(key, it->value().ToStringView()); !visited) return visited;
  }
  if (!it->status().ok())
    return tl::unexpected(to_error("cannot read the manifests", directory, it->status()));
  return {};
}

class RocksManifestStore : public ManifestStore {
 public:
  explicit RocksManifestStore(std::unique_ptr<Database> database)
      : database_(std::move(database)) {}

  Status commit(const Manifest& manifest) override {
    if (Status good = check_checkpoint_id(manifest.id); !good) return good;
    const Result<std::string> text = encode_manifest(manifest);
    if (!text) return tl::unexpected(text.error());
    const std::string what = fmt::format("cannot commit checkpoint '{}'", manifest.id);
    if (Status room =
            check_free_space(what, database_->directory(), 2 * text->size() + kCommitReserveBytes);
        !room)
      return room;
    std::string found;
    const std::lock_guard lock(commit_mutex_);
    std::uint64_t last = 0;
    const Status looked = each([&](std::string_view key, std::string_view) -> Status {
      last = sequence_of(key);
      if (key.substr(kManifestPrefixBytes) == manifest.id) found = key;
      return {};
    });
    if (!looked) return looked;
    if (!found.empty())
      return fail(Code::kAlreadyExists,
                  fmt::format("{}: it is already committed in {}", what, database_->directory()));
    return write(what, [&](rocksdb::WriteBatch& batch) {
      batch.Put(manifest_key(last + 1, manifest.id), *text);
    });
  }

  Result<std::vector<Manifest>> list() const override {
    Result<std::vector<Manifest>> manifests;
    const Status ran = database_->run("cannot list the checkpoints", [&](rocksdb::DB& db) {
      manifests = list_manifests(db, database_->directory());
      return rocksdb::Status::OK();
    });
    if (!ran) return tl::unexpected(ran.error());
    return manifests;
  }

  Status forget(const std::string& id) override {
    const std::string what = fmt::format("cannot forget checkpoint '{}'", id);
    std::string found;
    const std::lock_guard lock(commit_mutex_);
    const Status looked = each([&](std::string_view key, std::string_view) -> Status {
      if (key.substr(kManifestPrefixBytes) == id) found = key;
      return {};
    });
    if (!looked) return looked;
    if (found.empty())
      return fail(Code::kNotFound,
                  fmt::format("{}: there is none in {}", what, database_->directory()));
    return write(what, [&](rocksdb::WriteBatch& batch) { batch.Delete(found); });
  }

  Status put(const std::string& key, const std::string& value) override {
    return write(fmt::format("cannot store '{}'", key),
                 [&](rocksdb::WriteBatch& batch) { batch.Put(kFactTag + key, value); });
  }

  Result<std::optional<std::string>> get(const std::string& key) const override {
    std::optional<std::string> value;
    const Status ran = database_->run(fmt::format("cannot read '{}'", key), [&](rocksdb::DB& db) {
      std::string text;
      rocksdb::Status status = db.Get({}, kFactTag + key, &text);
      if (status.ok()) value = std::move(text);
      return status.IsNotFound() ? rocksdb::Status::OK() : status;
    });
    if (!ran) return tl::unexpected(ran.error());
    return value;
  }

 private:
  template <typename Visit>
  Status each(Visit visit) const {
    Status visited;
    Status ran = database_->run("cannot read the manifests", [&](rocksdb::DB& db) {
      visited = each_manifest(db, database_->directory(), visit);
      return rocksdb::Status::OK();
    });
    return ran ? visited : ran;
  }

  template <typename Fill>
  Status write(std::string_view what, Fill fill) {
    return database_->run(what, [&](rocksdb::DB& db) {
      rocksdb::WriteBatch batch;
      fill(batch);
      rocksdb::WriteOptions options;
      options.disableWAL = true;
      rocksdb::Status status = db.Write(options, &batch);
      if (status.ok()) status = db.Flush(rocksdb::FlushOptions());
      return status;
    });
  }

  const std::unique_ptr<Database> database_;
  std::mutex commit_mutex_;  // from looking for an id to writing it
};

}  // namespace

std::string manifest_directory(const std::string& checkpoint_dir) {
  return checkpoint_dir + "/manifest";
}

std::string shard_directory(const std::string& checkpoint_dir, ServerId server) {
  return fmt::format("{}/server-{:03}", checkpoint_dir, server.value());
}

std::string shard_directory(const std::string& checkpoint_dir, WorkerId worker) {
  return fmt::format("{}/worker-{:03}", checkpoint_dir, worker.value());
}

Result<std::vector<Manifest>> list_manifests(rocksdb::DB& db, const std::string& directory) {
  std::vector<Manifest> manifests;
  const Status read =
      each_manifest(db, directory, [&](std::string_view key, std::string_view value) -> Status {
        Result<Manifest> manifest =
            decode_manifest(std::string(key.substr(kManifestPrefixBytes)), value);
        if (!manifest)
          return fail(manifest.error().code,
                      fmt::format("{} (in {})", manifest.error().message, directory));
        manifests.push_back(std::move(*manifest));
        return {};
      });
  if (!read) return tl::unexpected(read.error());
  return manifests;
}

Result<std::vector<Manifest>> read_manifests(const std::string& checkpoint_dir) {
  if (std::error_code failed; !std::filesystem::is_directory(checkpoint_dir, failed))
    return fail(Code::kNotFound,
                fmt::format("the checkpoint directory {} does not exist", checkpoint_dir));
  const std::string directory = manifest_directory(checkpoint_dir);
  const Result<std::unique_ptr<rocksdb::DB>> db = open_read_only(directory);
  if (!db && db.error().code == Code::kNotFound) return std::vector<Manifest>{};
  if (!db) return tl::unexpected(db.error());
  return list_manifests(**db, directory);
}

Result<std::unique_ptr<ManifestStore>> ManifestStore::open(const std::string& checkpoint_dir) {
  Result<std::unique_ptr<Database>> database =
      Database::open(manifest_directory(checkpoint_dir), /*small_values=*/true);
  if (!database) return tl::unexpected(database.error());
  auto store = std::make_unique<RocksManifestStore>(std::move(*database));
  // A store of another format is refused at start, not at the first checkpoint.
  if (auto manifests = store->list(); !manifests) return tl::unexpected(manifests.error());
  return store;
}

}  // namespace leeway::storage
