// The store of one server as it was when it was opened, for reading beside the server that writes
// it. Any thread; immutable.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "common/result.h"
#include "storage/checkpoint_store.h"
#include "storage/records.h"

namespace rocksdb {
class DB;
class Iterator;
}  // namespace rocksdb

namespace leeway::storage {

// What a checkpoint says of this worker's residual, as the manifest of a checkpoint that holds
// nothing else. The worker has one.
Manifest residual_of(const Manifest& manifest, WorkerId worker);

class ShardReader {
 public:
  static Result<std::shared_ptr<const ShardReader>> open(const std::string& checkpoint_dir,
                                                         ServerId server);
  // Of a worker: read with the manifest that residual_of() gives, whose only "server" it is.
  static Result<std::shared_ptr<const ShardReader>> open(const std::string& checkpoint_dir,
                                                         WorkerId worker);
  ~ShardReader();
  ShardReader(const ShardReader&) = delete;
  ShardReader& operator=(const ShardReader&) = delete;

  // Elements [begin, begin + out.size()) of one array of the partition, counted from its first.
  // kNotFound when a record is not there: perhaps it is newer than this reader.
  Status read(const Manifest& manifest, std::uint32_t partition, ArrayKind kind,
              std::uint64_t begin, std::span<float> out) const;
  // Every record that the manifest wants of this server is there, whole, and no other.
  Status verify(const Manifest& manifest) const;

 private:
  ShardReader(std::string directory, std::uint32_t server, ArrayKind first,
              std::unique_ptr<rocksdb::DB> db);
  static Result<std::shared_ptr<const ShardReader>> open(std::string directory,
                                                         std::uint32_t server, ArrayKind first);

  // Seeks to the next wanted record; `name` says for a person which one it is.
  Result<Record> expect(rocksdb::Iterator& it, const Manifest& manifest, const RecordKey& key,
                        const std::string& name) const;
  Result<Record> expect_array(rocksdb::Iterator& it, const Manifest& manifest,
                              std::uint32_t partition, ArrayKind kind, std::uint32_t chunk) const;
  Status verify_arrays(rocksdb::Iterator& it, const Manifest& manifest, ShardDigest& digest,
                       std::uint64_t& records) const;
  Status verify_tail(rocksdb::Iterator& it, const Manifest& manifest, ShardDigest& digest,
                     std::uint64_t records) const;
  tl::unexpected<Error> problem(Code code, const Manifest& manifest, std::string_view what) const;
  std::unique_ptr<rocksdb::Iterator> iterate(const std::string& from, std::uint64_t bytes) const;

  const std::string directory_;
  const std::uint32_t server_;
  const ArrayKind first_;  // of each partition
  const std::unique_ptr<rocksdb::DB> db_;
};

}  // namespace leeway::storage
