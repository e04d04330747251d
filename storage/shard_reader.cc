#include "storage/shard_reader.h"

#include <fmt/format.h>
#include <rocksdb/db.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "storage/database.h"
#include "storage/manifest_reader.h"

namespace leeway::storage {
namespace {

constexpr std::uint64_t kReadAheadBytes = 4u << 20;

std::string_view kind_name(ArrayKind kind) {
  switch (kind) {
    case ArrayKind::kMaster:
      return "weights";
    case ArrayKind::kState0:
      return "optimizer state 0";
    case ArrayKind::kState1:
      return "optimizer state 1";
    case ArrayKind::kResidual:
      return "residual";
  }
  return "?";
}

std::uint64_t chunk_elements(std::uint64_t elements, std::uint32_t chunk) {
  return std::min(kChunkElements, elements - chunk * kChunkElements);
}

std::string array_name(const Manifest& manifest, std::uint32_t partition, ArrayKind kind,
                       std::uint32_t chunk) {
  const ManifestPartition& p = manifest.partitions[partition];
  const std::uint64_t first = p.begin + chunk * kChunkElements;
  return fmt::format("tensor '{}', {}, elements {} to {}", manifest.tensors[p.tensor].name,
                     kind_name(kind), first, first + chunk_elements(p.elements, chunk));
}

}  // namespace

Manifest residual_of(const Manifest& manifest, WorkerId worker) {
  const ManifestResidual& residual = *manifest.workers.at(worker.value()).residual;
  Manifest only{.id = residual.shard,
                .tensors = manifest.tensors,
                .partitions = manifest.partitions,
                .shard_digests = {residual.digest}};
  for (ManifestPartition& partition : only.partitions) partition.server = 0;
  return only;
}

ShardReader::ShardReader(std::string directory, std::uint32_t server, ArrayKind first,
                         std::unique_ptr<rocksdb::DB> db)
    : directory_(std::move(directory)), server_(server), first_(first), db_(std::move(db)) {}

ShardReader::~ShardReader() = default;

Result<std::shared_ptr<const ShardReader>> ShardReader::open(const std::string& checkpoint_dir,
                                                             ServerId server) {
  return open(shard_directory(checkpoint_dir, server), server.value(), ArrayKind::kMaster);
}

Result<std::shared_ptr<const ShardReader>> ShardReader::open(const std::string& checkpoint_dir,
                                                             WorkerId worker) {
  return open(shard_directory(checkpoint_dir, worker), 0, ArrayKind::kResidual);
}

Result<std::shared_ptr<const ShardReader>> ShardReader::open(std::string directory,
                                                             std::uint32_t server,
                                                             ArrayKind first) {
  Result<std::unique_ptr<rocksdb::DB>> db = open_read_only(directory);
  if (!db) return tl::unexpected(db.error());
  return std::shared_ptr<const ShardReader>(
      new ShardReader(std::move(directory), server, first, std::move(*db)));
}

tl::unexpected<Error> ShardReader::problem(Code code, const Manifest& manifest,
                                           std::string_view what) const {
  return fail(code, fmt::format("checkpoint '{}', {}: {}", manifest.id, directory_, what));
}

std::unique_ptr<rocksdb::Iterator> ShardReader::iterate(const std::string& from,
                                                        std::uint64_t bytes) const {
  rocksdb::ReadOptions options;
  options.fill_cache = false;
  options.readahead_size = std::min(bytes, kReadAheadBytes);
  std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(options));
  it->Seek(from);
  return it;
}

Result<Record> ShardReader::expect(rocksdb::Iterator& it, const Manifest& manifest,
                                   const RecordKey& key, const std::string& name) const {
  const std::string wanted = encode_key(manifest.id, key);
  if (!it.Valid() && !it.status().ok())
    return problem(Code::kDataLoss, manifest,
                   fmt::format("{}: damaged: {}", name, it.status().ToString()));
  if (!it.Valid() || it.key() != rocksdb::Slice(wanted))
    return problem(Code::kNotFound, manifest, name + ": missing");
  Result<Record> record = decode_record(wanted, it.value().ToStringView());
  if (!record)
    return problem(record.error().code, manifest,
                   fmt::format("{}: damaged: {}", name, record.error().message));
  if (server_ < manifest.shard_digests.size() &&
      save_of_digest(manifest.shard_digests[server_]) != record->save)
    return problem(Code::kDataLoss, manifest,
                   name + ": of another save than the one that was committed");
  return record;
}

Result<Record> ShardReader::expect_array(rocksdb::Iterator& it, const Manifest& manifest,
                                         std::uint32_t partition, ArrayKind kind,
                                         std::uint32_t chunk) const {
  const std::string name = array_name(manifest, partition, kind, chunk);
  Result<Record> record = expect(it, manifest, RecordKey::array(partition, kind, chunk), name);
  if (!record) return record;
  const std::uint64_t elements = chunk_elements(manifest.partitions[partition].elements, chunk);
  if (record->type != RecordType::kArray || record->first != chunk * kChunkElements ||
      record->payload.size() != elements * sizeof(float))
    return problem(Code::kDataLoss, manifest, name + ": has another size than the manifest says");
  return record;
}

Status ShardReader::read(const Manifest& manifest, std::uint32_t partition, ArrayKind kind,
                         std::uint64_t begin, std::span<float> out) const {
  auto chunk = static_cast<std::uint32_t>(begin / kChunkElements);
  const auto it = iterate(encode_key(manifest.id, RecordKey::array(partition, kind, chunk)),
                          out.size_bytes() + kMaxPayloadBytes);
  std::uint64_t skip = begin % kChunkElements;
  for (;; ++chunk, it->Next(), skip = 0) {
    const Result<Record> record = expect_array(*it, manifest, partition, kind, chunk);
    if (!record) return tl::unexpected(record.error());
    const std::uint64_t take =
        std::min<std::uint64_t>(record->payload.size() / sizeof(float) - skip, out.size());
    if (take != 0)
      std::memcpy(out.data(), record->payload.data() + skip * sizeof(float), take * sizeof(float));
    out = out.subspan(take);
    if (out.empty()) return {};
  }
}

Status ShardReader::verify(const Manifest& manifest) const {
  const auto save = save_of_digest(manifest.shard_digests[server_]);
  if (!save) return problem(Code::kDataLoss, manifest, "the manifest's shard digest is damaged");
  ShardDigest digest(*save);
  const auto it = iterate(id_begin(manifest.id), kReadAheadBytes);
  std::uint64_t records = 0;
  if (Status arrays = verify_arrays(*it, manifest, digest, records); !arrays) return arrays;
  if (Status tail = verify_tail(*it, manifest, digest, records); !tail) return tail;
  if (digest.text() != manifest.shard_digests[server_])
    return problem(Code::kDataLoss, manifest, "the shard is not the one that was committed");
  return {};
}

Status ShardReader::verify_arrays(rocksdb::Iterator& it, const Manifest& manifest,
                                  ShardDigest& digest, std::uint64_t& records) const {
  for (std::uint32_t p = 0; p < manifest.partitions.size(); ++p) {
    if (manifest.partitions[p].server != server_) continue;
    for (std::uint32_t array = 0; array <= manifest.state_arrays; ++array) {
      const auto kind = static_cast<ArrayKind>(static_cast<std::uint32_t>(first_) + array);
      const std::uint64_t chunks = chunks_of(manifest.partitions[p].elements);
      for (std::uint32_t chunk = 0; chunk < chunks; ++chunk, ++records, it.Next()) {
        const Result<Record> record = expect_array(it, manifest, p, kind, chunk);
        if (!record) return tl::unexpected(record.error());
        digest.add(it.key().ToStringView(), it.value().ToStringView());
      }
    }
  }
  return {};
}

Status ShardReader::verify_tail(rocksdb::Iterator& it, const Manifest& manifest,
                                ShardDigest& digest, std::uint64_t records) const {
  for (const auto& [worker, progress] : manifest.workers) {
    const RecordKey key = RecordKey::worker(worker);
    // Not every server has heard of every worker.
    if (!it.Valid() || it.key() != rocksdb::Slice(encode_key(manifest.id, key))) continue;
    const Result<Record> record =
        expect(it, manifest, key, fmt::format("progress of worker {}", worker));
    if (!record) return tl::unexpected(record.error());
    digest.add(it.key().ToStringView(), it.value().ToStringView());
    ++records;
    it.Next();
  }
  const Result<Record> end = expect(it, manifest, RecordKey::end(), "the end of the shard");
  if (!end) {
    // What stands in the place of the end is either nothing or something that does not belong here.
    const bool other = it.Valid() && it.key().starts_with(id_begin(manifest.id));
    if (!other) return tl::unexpected(end.error());
    return problem(Code::kDataLoss, manifest, "holds a record that the manifest does not know");
  }
  std::uint64_t count = 0;
  if (end->type != RecordType::kEnd || end->payload.size() != sizeof count)
    return problem(Code::kDataLoss, manifest, "the end of the shard is damaged");
  std::memcpy(&count, end->payload.data(), sizeof count);
  if (count != records)
    return problem(Code::kDataLoss, manifest,
                   fmt::format("holds {} records of {}", records, count));
  digest.add(it.key().ToStringView(), it.value().ToStringView());
  return {};
}

}  // namespace leeway::storage
