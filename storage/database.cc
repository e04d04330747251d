#include "storage/database.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace leeway::storage {
namespace {

// Readers must leave no LOG file in somebody else's directory. Writers must not have one either:
// this build of RocksDB asserts, and so aborts the process, when it logs again after the disk was
// full.
class SilentLogger : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::string free_bytes(const std::string& directory) {
  struct statvfs info {};
  if (statvfs(directory.c_str(), &info) != 0) return "an unknown number of";
  return std::to_string(static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize);
}

// Who holds the POSIX lock on RocksDB's LOCK file. Only asked after another process was found to
// hold it: closing the file drops any lock of our own on it.
std::string lock_holder(const std::string& directory) {
  const int fd = ::open((directory + "/LOCK").c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return "another process";
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  const int got = fcntl(fd, F_GETLK, &lock);
  ::close(fd);
  if (got != 0 || lock.l_type == F_UNLCK || lock.l_pid <= 0) return "another process";
  std::string name;
  std::getline(std::ifstream(fmt::format("/proc/{}/comm", lock.l_pid)), name);
  return fmt::format("process {} ({})", lock.l_pid, name.empty() ? "of another host" : name);
}

// RocksDB reports a lock as a plain I/O error; only the text tells it apart.
std::string lock_owner(const std::string& directory, const rocksdb::Status& status) {
  const std::string text = status.ToString();
  if (!status.IsIOError() || text.find("/LOCK") == std::string::npos) return "";
  if (text.find("current process") != std::string::npos) return "this process itself";
  if (text.find("While lock file") != std::string::npos) return lock_holder(directory);
  return "";
}

// The system's reason why the directory may not be written to, or "".
std::string why_forbidden(const rocksdb::Status& status) {
  const std::string text = status.ToString();
  for (const int reason : {EROFS, EACCES, EPERM})
    if (const std::string why = std::generic_category().message(reason); text.ends_with(why))
      return why;
  return "";
}

rocksdb::Options base_options() {
  rocksdb::Options options;
  options.compression = rocksdb::kNoCompression;
  options.max_open_files = -1;  // all tables opened at once: a reader never opens one later
  options.skip_stats_update_on_db_open = true;
  options.info_log = std::make_shared<SilentLogger>();
  rocksdb::BlockBasedTableOptions table;
  table.no_block_cache = true;  // every byte is read once
  table.checksum = rocksdb::kXXH3;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

}  // namespace

rocksdb::Options table_options() { return base_options(); }

Error to_error(std::string_view what, const std::string& directory, const rocksdb::Status& status) {
  if (status.IsNoSpace())
    return {Code::kResourceExhausted,
            fmt::format("{}: the disk of {} is full ({} bytes free): free space or choose another "
                        "checkpoint directory",
                        what, directory, free_bytes(directory))};
  const Code code = status.IsCorruption()     ? Code::kDataLoss
                    : status.IsNotFound()     ? Code::kNotFound
                    : status.IsPathNotFound() ? Code::kNotFound
                                              : Code::kInternal;
  return {code, one_line(fmt::format("{}: {} in {}", what, status.ToString(), directory))};
}

Status check_free_space(std::string_view what, const std::string& directory, std::uint64_t needed) {
  struct statvfs info {};
  if (statvfs(directory.c_str(), &info) != 0)
    return fail(Code::kInternal,
                fmt::format("{}: cannot ask {} for its free space", what, directory));
  const std::uint64_t available = static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
  if (available >= needed) return {};
  return fail(Code::kResourceExhausted,
              fmt::format("{}: {} needs {} bytes and has {} free: free space, keep fewer "
                          "checkpoints or choose another checkpoint directory",
                          what, directory, needed, available));
}

Database::Database(std::string directory, bool small_values)
    : directory_(std::move(directory)), small_values_(small_values) {}

Database::~Database() = default;

Result<std::unique_ptr<Database>> Database::open(const std::string& directory, bool small_values) {
  std::error_code failed;
  std::filesystem::create_directories(directory, failed);
  if (failed)
    return fail(Code::kInvalidArgument,
                fmt::format("cannot create the directory {}: {}", directory, failed.message()));
  std::unique_ptr<Database> database(new Database(directory, small_values));
  std::lock_guard lock(database->mutex_);
  if (Status opened = database->reopen(); !opened) return tl::unexpected(opened.error());
  return database;
}

Status Database::reopen() {
  rocksdb::Options options = base_options();
  options.create_if_missing = true;
  options.write_buffer_size = 4u << 20;
  options.avoid_flush_during_shutdown = true;  // what was not acknowledged must not appear later
  options.disable_auto_compactions = !small_values_;  // a shard is written once, never rewritten
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(options, directory_, &db);
  if (status.ok()) {
    db_.reset(db);
    return {};
  }
  if (const std::string owner = lock_owner(directory_, status); !owner.empty())
    return fail(Code::kRefused,
                fmt::format("{} is in use by {}: stop it, or choose another checkpoint directory",
                            directory_, owner));
  if (const std::string why = why_forbidden(status); !why.empty())
    return fail(Code::kInvalidArgument,
                fmt::format("cannot write to {}: {}: make it writable for this user, or choose "
                            "another checkpoint directory",
                            directory_, why));
  return tl::unexpected(to_error("cannot open the store", directory_, status));
}

Status Database::run(std::string_view what,
                     const std::function<rocksdb::Status(rocksdb::DB&)>& operation) {
  std::lock_guard lock(mutex_);
  if (!db_)
    if (Status opened = reopen(); !opened)
      return fail(opened.error().code, fmt::format("{}: {}", what, opened.error().message));
  const rocksdb::Status status = operation(*db_);
  if (status.ok()) return {};
  db_.reset();
  return tl::unexpected(to_error(what, directory_, status));
}

Result<std::unique_ptr<rocksdb::DB>> open_read_only(const std::string& directory) {
  if (std::error_code failed; !std::filesystem::exists(directory + "/CURRENT", failed))
    return fail(Code::kNotFound, fmt::format("there is no checkpoint store in {}", directory));
  rocksdb::Options options = base_options();
  // The writer beside us may delete a file between our reading of its list and our opening of it.
  constexpr int kTries = 10;
  rocksdb::Status status;
  for (int i = 0; i < kTries; ++i) {
    rocksdb::DB* db = nullptr;
    status = rocksdb::DB::OpenForReadOnly(options, directory, &db);
    if (status.ok()) return std::unique_ptr<rocksdb::DB>(db);
  }
  return tl::unexpected(to_error("cannot read the store", directory, status));
}

}  // namespace leeway::storage
