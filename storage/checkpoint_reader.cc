#include <fmt/format.h>
#include <rocksdb/db.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>

#include "storage/checkpoint_store.h"
#include "storage/digest.h"
#include "storage/manifest_codec.h"
#include "storage/manifest_reader.h"
#include "storage/shard_reader.h"

namespace leeway::storage {
namespace {

constexpr std::size_t kReadThreads = 4;  // more gain nothing on one disk (MEASURED: iterators)
constexpr std::uint64_t kParallelElements = 4u << 20;  // below, a thread costs more than it gains
constexpr std::uint64_t kDigestElements = 8u << 20;    // a buffer of 32 MiB

// The part of one partition that a read wants.
struct Piece {
  std::uint32_t partition = 0;
  std::uint64_t begin = 0;  // within the partition
  std::span<float> out;
};

class RocksCheckpointReader : public CheckpointReader {
 public:
  RocksCheckpointReader(std::string directory, std::vector<Manifest> manifests)
      : directory_(std::move(directory)), manifests_(std::move(manifests)) {}

  const std::vector<Manifest>& manifests() const override { return manifests_; }

  Result<Manifest> manifest(const std::string& id) const override {
    if (const Manifest* known = find(manifests_, id)) return *known;
    // Committed since this was opened.
    const Result<std::vector<Manifest>> now = read_manifests(directory_);
    if (!now) return tl::unexpected(now.error());
    if (const Manifest* found = find(*now, id)) return *found;
    if (id.empty())
      return fail(Code::kNotFound,
                  fmt::format("there is no committed checkpoint in {}", directory_));
    return fail(
        Code::kNotFound,
        fmt::format("there is no committed checkpoint '{}' in {}: `leeway-ckpt list {}` shows "
                    "those there are",
                    id, directory_, directory_));
  }

  Status read(const Manifest& manifest, std::uint32_t tensor, ArrayKind kind, std::uint64_t begin,
              std::span<float> out) const override {
    const Result<std::vector<Piece>> pieces = find_pieces(manifest, tensor, kind, begin, out);
    if (!pieces) return tl::unexpected(pieces.error());
    const std::size_t threads =
        out.size() < kParallelElements ? 1 : std::min(kReadThreads, pieces->size());
    std::atomic<std::size_t> next{0};
    std::mutex mutex;
    Status result;  // the first failure; guarded by mutex
    const auto work = [&] {
      for (std::size_t i = next++; i < pieces->size(); i = next++) {
        Status read = read_piece(manifest, kind, (*pieces)[i]);
        if (read) continue;
        next = pieces->size();
        const std::lock_guard lock(mutex);
        if (result) result = std::move(read);
      }
    };
    {
      std::vector<std::jthread> helpers;
      for (std::size_t i = 1; i < threads; ++i) helpers.emplace_back(work);
      work();
    }
    return result;
  }

  Status verify(const Manifest& manifest) const override {
    if (Status good = check_manifest(manifest); !good) return good;
    for (std::uint32_t server = 0; server < manifest.shard_digests.size(); ++server) {
      Status verified = with_shard(manifest, ServerId(server), [&](const ShardReader& shard) {
        return shard.verify(manifest);
      });
      if (!verified) return verified;
    }
    for (const auto& [rank, worker] : manifest.workers) {
      if (!worker.residual) continue;
      const Manifest residual = residual_of(manifest, WorkerId(rank));
      Status verified = with_shard(manifest, WorkerId(rank), [&](const ShardReader& shard) {
        return shard.verify(residual);
      });
      if (!verified) return verified;
    }
    return {};
  }

  Status read_residual(const Manifest& manifest, WorkerId worker, std::uint32_t tensor,
                       std::span<float> out) const override {
    const Manifest residual = residual_of(manifest, worker);
    const Result<std::vector<Piece>> pieces =
        find_pieces(residual, tensor, ArrayKind::kMaster, 0, out);
    if (!pieces) return tl::unexpected(pieces.error());
    for (const Piece& piece : *pieces) {
      Status read = with_shard(manifest, worker, [&](const ShardReader& shard) {
        return shard.read(residual, piece.partition, ArrayKind::kResidual, piece.begin, piece.out);
      });
      if (!read) return read;
    }
    return {};
  }

  Result<std::string> digest(const Manifest& manifest) const override {
    if (Status good = check_manifest(manifest); !good) return tl::unexpected(good.error());
    ModelDigest digest;
    std::vector<float> buffer;
    for (std::uint32_t t = 0; t < manifest.tensors.size(); ++t) {
      const ManifestTensor& tensor = manifest.tensors[t];
      digest.begin_tensor(tensor.name, tensor.shape);
      const std::uint64_t elements = *element_count(tensor.shape);
      for (std::uint64_t at = 0; at < elements; at += buffer.size()) {
        buffer.resize(std::min(kDigestElements, elements - at));
        if (Status got = read(manifest, t, ArrayKind::kMaster, at, buffer); !got)
          return tl::unexpected(got.error());
        digest.add(buffer);
      }
    }
    return digest.hex();
  }

 private:
  static const Manifest* find(const std::vector<Manifest>& manifests, const std::string& id) {
    if (id.empty()) return manifests.empty() ? nullptr : &manifests.back();
    for (const Manifest& manifest : manifests)
      if (manifest.id == id) return &manifest;
    return nullptr;
  }

  static Result<std::vector<Piece>> find_pieces(const Manifest& manifest, std::uint32_t tensor,
                                                ArrayKind kind, std::uint64_t begin,
                                                std::span<float> out) {
    const auto bad = [&](std::string_view why) {
      return fail(Code::kInvalidArgument,
                  fmt::format("cannot read checkpoint '{}': {}", manifest.id, why));
    };
    if (tensor >= manifest.tensors.size()) return bad(fmt::format("it has no tensor {}", tensor));
    const std::string& name = manifest.tensors[tensor].name;
    if (static_cast<std::uint32_t>(kind) > manifest.state_arrays)
      return bad("it was saved with another optimizer, which kept fewer arrays");
    const auto elements = element_count(manifest.tensors[tensor].shape);
    if (!elements || begin > *elements || out.size() > *elements - begin)
      return bad(fmt::format("elements {} to {} are not all in tensor '{}'", begin,
                             begin + out.size(), name));
    auto partition = std::lower_bound(
        manifest.partitions.begin(), manifest.partitions.end(), std::pair(tensor, begin),
        [](const ManifestPartition& p, const std::pair<std::uint32_t, std::uint64_t>& wanted) {
          return p.tensor < wanted.first ||
                 (p.tensor == wanted.first && p.begin + p.elements <= wanted.second);
        });
    std::vector<Piece> pieces;
    for (; !out.empty(); ++partition) {
      if (partition == manifest.partitions.end() || partition->tensor != tensor ||
          begin < partition->begin || begin - partition->begin > partition->elements)
        return fail(Code::kDataLoss,
                    fmt::format("the manifest of checkpoint '{}' has no partition for "
                                "element {} of tensor '{}'",
                                manifest.id, begin, name));
      const std::uint64_t skip = begin - partition->begin;
      const std::uint64_t take = std::min<std::uint64_t>(partition->elements - skip, out.size());
      if (take != 0)
        pieces.push_back({static_cast<std::uint32_t>(partition - manifest.partitions.begin()), skip,
                          out.first(take)});
      out = out.subspan(take);
      begin += take;
    }
    return pieces;
  }

  Status read_piece(const Manifest& manifest, ArrayKind kind, const Piece& piece) const {
    return with_shard(manifest, ServerId(manifest.partitions[piece.partition].server),
                      [&](const ShardReader& shard) {
                        return shard.read(manifest, piece.partition, kind, piece.begin, piece.out);
                      });
  }

  // A shard that lacks something may have been opened before it was written: one more look.
  template <typename Owner, typename Use>
  Status with_shard(const Manifest& manifest, Owner owner, Use use) const {
    std::shared_ptr<const ShardReader> stale;
    for (;;) {
      Result<std::shared_ptr<const ShardReader>> shard = open_shard(owner, stale);
      if (!shard)
        return fail(shard.error().code == Code::kNotFound ? Code::kDataLoss : shard.error().code,
                    fmt::format("checkpoint '{}': {}", manifest.id, shard.error().message));
      Status used = use(**shard);
      if (used || used.error().code != Code::kNotFound) return used;
      if (stale) return fail(Code::kDataLoss, used.error().message);
      stale = *shard;
    }
  }

  template <typename Owner>
  Result<std::shared_ptr<const ShardReader>> open_shard(
      Owner owner, const std::shared_ptr<const ShardReader>& stale) const {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<const ShardReader>& shard = shards_[shard_directory(directory_, owner)];
    if (shard && shard != stale) return shard;
    Result<std::shared_ptr<const ShardReader>> opened = ShardReader::open(directory_, owner);
    if (!opened) return opened;
    shard = *opened;
    return shard;
  }

  const std::string directory_;
  const std::vector<Manifest> manifests_;
  mutable std::mutex mutex_;
  // By directory; guarded by mutex_.
  mutable std::map<std::string, std::shared_ptr<const ShardReader>> shards_;
};

}  // namespace

Result<std::unique_ptr<CheckpointReader>> CheckpointReader::open(
    const std::string& checkpoint_dir) {
  Result<std::vector<Manifest>> manifests = read_manifests(checkpoint_dir);
  if (!manifests) return tl::unexpected(manifests.error());
  // The scheduler makes it at the start of the first job that is to save here.
  std::error_code failed;
  if (!std::filesystem::is_directory(manifest_directory(checkpoint_dir), failed))
    return fail(
        Code::kNotFound,
        fmt::format("{} is no checkpoint directory: it has no manifest/; give the directory "
                    "that a job had as --checkpoint-dir",
                    checkpoint_dir));
  return std::make_unique<RocksCheckpointReader>(checkpoint_dir, std::move(*manifests));
}

}  // namespace leeway::storage
