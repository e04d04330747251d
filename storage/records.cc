// A key, in an order that is the order of the bytes:
//
//   the checkpoint's id (1..128 bytes, no NUL), 0x00
//   u32 partition, big-endian     0xFFFFFFFF for what is no array
//   u8  kind                      ArrayKind; 0xFE a worker, 0xFF the end record
//   u32 chunk, big-endian         a worker's rank; 0 in the end record
//
// A value (little-endian), at most 40 bytes + 1 MiB:
//
//    0  u32 magic "LWRC"
//    4  u16 version = 1
//    6  u16 type: 0 array, 1 worker, 2 end
//    8  u64 save number, the same in all records of a shard
//   16  u64 first element, counted within the partition's array (0 for the other types)
//   24  u64 payload bytes
//   32  u64 XXH3-64 of the payload, seeded with XXH3-64 of (key, the 32 bytes above): a record in a
//       wrong place is found as a flipped bit is
//   40  payload: FP32 elements, 262,144 in each chunk but the last
//                worker: u64 clock, the worker's state bytes
//                end: u64 number of records before this one
#include "storage/records.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <bit>
#include <charconv>
#include <cstring>

namespace leeway::storage {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::uint32_t kMagic = 0x4352574C;  // "LWRC"
constexpr std::uint16_t kVersion = 1;
constexpr std::uint32_t kNoPartition = UINT32_MAX;
constexpr std::uint8_t kWorkerKind = 0xFE;
constexpr std::uint8_t kEndKind = 0xFF;
constexpr std::size_t kHashedHeaderBytes = 32;

template <typename T>
void put(char* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

template <typename T>
T take(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

void append_big_endian(std::string& text, std::uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(value >> shift);
}

std::uint64_t checksum(std::string_view key, std::string_view value) {
  char place[kMaxIdBytes + 16 + kHashedHeaderBytes];
  LEEWAY_CHECK(key.size() + kHashedHeaderBytes <= sizeof place);
  std::memcpy(place, key.data(), key.size());
  std::memcpy(place + key.size(), value.data(), kHashedHeaderBytes);
  const std::uint64_t seed = XXH3_64bits(place, key.size() + kHashedHeaderBytes);
  return XXH3_64bits_withSeed(value.data() + kRecordHeaderBytes, value.size() - kRecordHeaderBytes,
                              seed);
}

XXH3_state_t* hash(void* state) { return static_cast<XXH3_state_t*>(state); }

}  // namespace

RecordKey RecordKey::array(std::uint32_t partition, ArrayKind kind, std::uint32_t chunk) {
  return {partition, static_cast<std::uint8_t>(kind), chunk};
}
RecordKey RecordKey::worker(std::uint32_t worker) { return {kNoPartition, kWorkerKind, worker}; }
RecordKey RecordKey::end() { return {kNoPartition, kEndKind, 0}; }

Status check_checkpoint_id(const std::string& id) {
  const auto allowed = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
           c == '_' || c == '-';
  };
  bool good = !id.empty() && id.size() <= kMaxIdBytes;
  for (char c : id) good = good && allowed(c);
  if (good) return {};
  return fail(Code::kInvalidArgument,
              "a checkpoint id is 1 to 128 letters, digits, '.', '_' or '-'");
}

std::string id_begin(const std::string& id) { return id + '\0'; }
std::string id_end(const std::string& id) { return id + '\1'; }

std::string encode_key(const std::string& id, const RecordKey& key) {
  std::string text = id_begin(id);
  append_big_endian(text, key.partition);
  text += static_cast<char>(key.kind);
  append_big_endian(text, key.chunk);
  return text;
}

std::optional<std::string> id_of_key(std::string_view key) {
  const std::size_t end = key.find('\0');
  if (end == std::string_view::npos || key.size() != end + 10) return std::nullopt;
  std::string id(key.substr(0, end));
  if (!check_checkpoint_id(id)) return std::nullopt;
  return id;
}

void encode_record(std::string_view key, const Record& record, std::string& value) {
  value.resize(kRecordHeaderBytes + record.payload.size());
  char* at = value.data();
  put(at, kMagic);
  put(at + 4, kVersion);
  put(at + 6, static_cast<std::uint16_t>(record.type));
  put(at + 8, record.save);
  put(at + 16, record.first);
  put(at + 24, static_cast<std::uint64_t>(record.payload.size()));
  if (!record.payload.empty())
    std::memcpy(at + kRecordHeaderBytes, record.payload.data(), record.payload.size());
  put(at + 32, checksum(key, value));
}

Result<Record> decode_record(std::string_view key, std::string_view value) {
  if (key.size() > kMaxIdBytes + 16 || value.size() < kRecordHeaderBytes)
    return fail(Code::kDataLoss, "the record is cut short");
  const char* at = value.data();
  if (take<std::uint32_t>(at) != kMagic)
    return fail(Code::kDataLoss, "the record does not begin as a record does");
  if (const auto version = take<std::uint16_t>(at + 4); version != kVersion)
    return fail(Code::kUnsupported,
                fmt::format("the record has format version {}, this program reads {}: use the "
                            "version of Leeway that wrote it",
                            version, kVersion));
  const auto type = take<std::uint16_t>(at + 6);
  if (type > static_cast<std::uint16_t>(RecordType::kEnd))
    return fail(Code::kDataLoss, "the record is of an unknown type");
  if (take<std::uint64_t>(at + 24) != value.size() - kRecordHeaderBytes ||
      value.size() - kRecordHeaderBytes > kMaxPayloadBytes)
    return fail(Code::kDataLoss, "the record's length is wrong");
  if (take<std::uint64_t>(at + 32) != checksum(key, value))
    return fail(Code::kDataLoss, "the record's checksum is wrong");
  return Record{static_cast<RecordType>(type), take<std::uint64_t>(at + 8),
                take<std::uint64_t>(at + 16), value.substr(kRecordHeaderBytes)};
}

std::string encode_worker(const ManifestWorker& worker) {
  std::string text(sizeof(std::uint64_t) + worker.state.size(), '\0');
  put(text.data(), worker.clock.value());
  if (!worker.state.empty())
    std::memcpy(text.data() + sizeof(std::uint64_t), worker.state.data(), worker.state.size());
  return text;
}

ShardDigest::ShardDigest(std::uint64_t save) : state_(XXH3_createState()), save_(save) {
  LEEWAY_CHECK(state_ != nullptr);
  XXH3_128bits_reset(hash(state_));
}

ShardDigest::~ShardDigest() { XXH3_freeState(hash(state_)); }

void ShardDigest::add(std::string_view key, std::string_view value) {
  XXH3_128bits_update(hash(state_), key.data(), key.size());
  XXH3_128bits_update(hash(state_), value.data(), kRecordHeaderBytes);
}

std::string ShardDigest::text() const {
  const XXH128_hash_t digest = XXH3_128bits_digest(hash(state_));
  return fmt::format("{:016x}{:016x}-{:016x}", digest.high64, digest.low64, save_);
}

std::optional<std::uint64_t> save_of_digest(std::string_view text) {
  if (text.size() != 49 || text[32] != '-') return std::nullopt;
  std::uint64_t save = 0;
  const auto [end, failed] = std::from_chars(text.data() + 33, text.data() + 49, save, 16);
  if (failed != std::errc{} || end != text.data() + 49) return std::nullopt;
  return save;
}

}  // namespace leeway::storage
