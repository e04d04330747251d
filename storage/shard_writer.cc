#include "storage/shard_writer.h"

#include <fmt/format.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>
#include <rocksdb/sst_file_writer.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>

#include "storage/records.h"

namespace leeway::storage {
namespace {

// The table writer keeps a failed write to itself until its Finish, so we look before each: what it
// has buffered, and what RocksDB needs to record the table.
constexpr std::uint64_t kReserveBytes = 3u << 20;

std::uint64_t draw_save_number() {
  std::random_device device;
  return static_cast<std::uint64_t>(device()) << 32 | device();
}

class SstShardWriter : public ShardWriter {
 public:
  SstShardWriter(std::shared_ptr<Database> database, std::string file, std::string id)
      : database_(std::move(database)),
        file_(std::move(file)),
        id_(std::move(id)),
        what_(fmt::format("cannot write checkpoint '{}'", id_)),
        save_(draw_save_number()),
        digest_(save_),
        table_(std::in_place, rocksdb::EnvOptions(), table_options()) {}

  ~SstShardWriter() override { discard(); }

  Status open() { return check(table_->Open(file_)); }

  Status add(PartitionId partition, ArrayKind kind, std::span<const float> values) override {
    const RecordKey first = RecordKey::array(partition.value(), kind, 0);
    if (partition.value() == UINT32_MAX || (last_ && first <= *last_))
      return fail(Code::kInvalidArgument,
                  fmt::format("{}: partition {}, array {} is out of order", what_,
                              partition.value(), static_cast<int>(kind)));
    const std::uint64_t chunks = chunks_of(values.size());
    if (chunks > UINT32_MAX)
      return fail(Code::kInvalidArgument,
                  fmt::format("{}: partition {} has too many elements", what_, partition.value()));
    for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) {
      const std::uint64_t at = chunk * kChunkElements;
      const auto part = values.subspan(at, std::min(kChunkElements, values.size() - at));
      const std::string_view payload(reinterpret_cast<const char*>(part.data()), part.size_bytes());
      if (Status put = append(RecordKey::array(partition.value(), kind, chunk),
                              {RecordType::kArray, save_, at, payload});
          !put)
        return put;
    }
    return {};
  }

  Status add_worker(std::uint32_t worker, const ManifestWorker& progress) override {
    if (Status alive = check_open(); !alive) return alive;
    std::string payload = encode_worker(progress);
    if (payload.size() > kMaxPayloadBytes)
      return fail(Code::kInvalidArgument,
                  fmt::format("{}: worker {} has more than a MiB of state", what_, worker));
    if (!workers_.emplace(worker, std::move(payload)).second)
      return fail(Code::kInvalidArgument, fmt::format("{}: worker {} given twice", what_, worker));
    return {};
  }

  Result<Finished> finish() override {
    for (const auto& [worker, payload] : workers_)
      if (Status put = append(RecordKey::worker(worker), {RecordType::kWorker, save_, 0, payload});
          !put)
        return tl::unexpected(put.error());
    const std::string count(reinterpret_cast<const char*>(&records_), sizeof records_);
    if (Status put = append(RecordKey::end(), {RecordType::kEnd, save_, 0, count}); !put)
      return tl::unexpected(put.error());
    rocksdb::ExternalSstFileInfo info;
    // Finish syncs the file, so its bytes are on the disk before the database names it.
    if (Status closed = check(table_->Finish(&info)); !closed)
      return tl::unexpected(closed.error());
    const Status ingested = database_->run(what_, [&](rocksdb::DB& db) { return ingest(db); });
    if (!ingested) {
      discard();
      return tl::unexpected(ingested.error());
    }
    table_.reset();
    return Finished{digest_.text(), info.file_size};
  }

 private:
  rocksdb::Status ingest(rocksdb::DB& db) const {
    rocksdb::IngestExternalFileOptions options;
    options.move_files = true;  // a hard link: no second copy
    options.snapshot_consistency = false;
    options.write_global_seqno = false;
    return db.IngestExternalFile({file_}, options);
  }

  Status append(const RecordKey& key, const Record& record) {
    if (Status alive = check_open(); !alive) return alive;
    if (Status room = check_free_space(what_, database_->directory(), kReserveBytes); !room) {
      discard();
      return room;
    }
    const std::string text = encode_key(id_, key);
    encode_record(text, record, value_);
    if (Status put = check(table_->Put(text, value_)); !put) return put;
    digest_.add(text, value_);
    last_ = key;
    ++records_;
    return {};
  }

  Status check_open() const {
    if (table_) return {};
    return fail(Code::kInvalidArgument, what_ + ": its writer failed or finished before");
  }

  // Gives the space back at once: on a full disk others need it.
  Status check(const rocksdb::Status& status) {
    if (status.ok()) return {};
    discard();
    return tl::unexpected(to_error(what_, database_->directory(), status));
  }

  void discard() {
    table_.reset();
    ::unlink(file_.c_str());
  }

  const std::shared_ptr<Database> database_;
  const std::string file_;
  const std::string id_;
  const std::string what_;
  const std::uint64_t save_;
  ShardDigest digest_;
  std::optional<rocksdb::SstFileWriter> table_;  // empty once failed or finished
  std::optional<RecordKey> last_;
  std::map<std::uint32_t, std::string> workers_;  // after all arrays, whenever they were given
  std::uint64_t records_ = 0;
  std::string value_;
};

}  // namespace

Result<std::unique_ptr<ShardWriter>> open_shard_writer(std::shared_ptr<Database> database,
                                                       const std::string& file,
                                                       const std::string& checkpoint_id) {
  auto writer = std::make_unique<SstShardWriter>(std::move(database), file, checkpoint_id);
  if (Status opened = writer->open(); !opened) return tl::unexpected(opened.error());
  return writer;
}

}  // namespace leeway::storage
