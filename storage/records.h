// Keys and values of a shard store, without RocksDB: encoded by the writer, checked by the reader.
// Plain values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/result.h"
#include "storage/checkpoint_store.h"

namespace leeway::storage {

inline constexpr std::uint64_t kChunkElements = 1u << 18;  // 1 MiB of FP32
inline constexpr std::size_t kRecordHeaderBytes = 40;
inline constexpr std::size_t kMaxPayloadBytes = kChunkElements * sizeof(float);
inline constexpr std::size_t kMaxIdBytes = 128;

enum class RecordType : std::uint16_t { kArray = 0, kWorker = 1, kEnd = 2 };

// Where a record belongs. Sorts as its key does.
struct RecordKey {
  std::uint32_t partition = 0;
  std::uint8_t kind = 0;
  std::uint32_t chunk = 0;
  friend auto operator<=>(const RecordKey&, const RecordKey&) = default;

  static RecordKey array(std::uint32_t partition, ArrayKind kind, std::uint32_t chunk);
  static RecordKey worker(std::uint32_t worker);
  static RecordKey end();
};

struct Record {
  RecordType type = RecordType::kArray;
  std::uint64_t save = 0;   // drawn at random by the writer: the same in all records of a shard
  std::uint64_t first = 0;  // array: first element, counted from the partition's begin
  std::string_view payload;
};

// An id becomes part of keys and of file names: 1 to 128 of A-Z a-z 0-9 . _ -
Status check_checkpoint_id(const std::string& id);

// How many chunks an array of so many elements has: an empty one has one, empty chunk.
constexpr std::uint64_t chunks_of(std::uint64_t elements) noexcept {
  return elements == 0 ? 1 : (elements - 1) / kChunkElements + 1;
}

std::string id_begin(const std::string& id);  // the first possible key of a checkpoint
std::string id_end(const std::string& id);    // the first key after all of its
std::string encode_key(const std::string& id, const RecordKey& key);
// Which checkpoint a key belongs to; nothing when it is no key of ours.
std::optional<std::string> id_of_key(std::string_view key);

// Writes header and payload into `value` (reused between calls).
void encode_record(std::string_view key, const Record& record, std::string& value);
// The payload points into `value`. kDataLoss says what is wrong with it.
Result<Record> decode_record(std::string_view key, std::string_view value);

std::string encode_worker(const ManifestWorker& worker);

// What ShardWriter::finish returns and the manifest keeps: 32 hex digits over keys and headers
// (which hold the payloads' hashes), "-", the save number in 16.
class ShardDigest {
 public:
  explicit ShardDigest(std::uint64_t save);
  ~ShardDigest();
  ShardDigest(const ShardDigest&) = delete;
  ShardDigest& operator=(const ShardDigest&) = delete;
  void add(std::string_view key, std::string_view value);
  std::string text() const;

 private:
  void* const state_;
  const std::uint64_t save_;
};
std::optional<std::uint64_t> save_of_digest(std::string_view text);

}  // namespace leeway::storage
