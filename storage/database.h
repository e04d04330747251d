// One RocksDB database and the ways in which Leeway may open it. Both stores and all readers go
// through here, so that what we learned about RocksDB 7.8 is written down once:
//
// * With its write-ahead log on, RocksDB aborts the process when the disk fills. Nothing here uses
// the
//   log: small writes are flushed to a table before they count, shards are ingested as tables.
// * After a failed write a handle refuses all further ones, whatever space there is by then, until
// it is
//   opened again. So a handle that failed is thrown away, and the next call opens another.
// * A reader opened beside a live writer sees the state of that moment; it keeps its files open, so
//   what the writer deletes later does not disturb it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "common/result.h"

namespace rocksdb {
class DB;
class Iterator;
struct Options;
class Status;
}  // namespace rocksdb

namespace leeway::storage {

// A database open for writing. Called from any thread; one call runs at a time. The directory is
// locked against other processes while this lives.
class Database {
 public:
  // `small_values`: many small updates of the same keys, which are worth compacting by themselves.
  // Creates the directory. Refused when somebody else has it open, by name and process id.
  static Result<std::unique_ptr<Database>> open(const std::string& directory, bool small_values);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  // Runs `operation` on a working handle. When it fails the handle is thrown away. `what` opens the
  // message: "cannot commit checkpoint 'step-100'".
  Status run(std::string_view what, const std::function<rocksdb::Status(rocksdb::DB&)>& operation);

  const std::string& directory() const noexcept { return directory_; }

 private:
  Database(std::string directory, bool small_values);
  Status reopen();  // mutex_ held

  const std::string directory_;
  const bool small_values_;
  std::mutex mutex_;
  std::unique_ptr<rocksdb::DB> db_;  // guarded by mutex_; null after a failure
};

// Opens the state of now without taking the lock; writes nothing, not even a log file. kNotFound
// when there is no database in `directory`.
Result<std::unique_ptr<rocksdb::DB>> open_read_only(const std::string& directory);

// The options of an array table: no compression, one block a record, checked by XXH3.
rocksdb::Options table_options();

// Translates a failed status: a full disk becomes kResourceExhausted with the bytes free and the
// remedy, damage kDataLoss. One line.
Error to_error(std::string_view what, const std::string& directory, const rocksdb::Status& status);

// kResourceExhausted when the file system of `directory` has fewer than `needed` bytes for us.
Status check_free_space(std::string_view what, const std::string& directory, std::uint64_t needed);

}  // namespace leeway::storage
