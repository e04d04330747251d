#include "test_job.h"

#include <bit>
#include <cstring>
#include <fstream>
#include <map>

#include "storage/digest.h"

namespace leeway::storage::testing {
namespace {

std::uint64_t mix(std::uint64_t x) {  // splitmix64
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

TempDir::TempDir() {
  std::string pattern = (std::filesystem::temp_directory_path() / "leeway-storage-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary directory");
  path_ = pattern;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TempDir::path(const std::string& name) const {
  return name.empty() ? path_.string() : (path_ / name).string();
}

TestModel TestModel::small(std::uint64_t seed) {
  return {{{"a.empty", {0}},
           {"b.empty_rows", {0, 128}},
           {"c.scalar", {}},
           {"d.three", {3}},
           {"e.weight", {700, 1000}}},
          1,
          seed};
}

std::vector<float> TestModel::values(std::uint32_t tensor, ArrayKind kind) const {
  std::vector<float> values(*element_count(tensors[tensor].shape));
  const std::uint64_t base = mix(mix(seed) + tensor * 4 + static_cast<std::uint64_t>(kind));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = std::bit_cast<float>(static_cast<std::uint32_t>(mix(base + i)));
  return values;
}

std::string TestModel::digest() const {
  ModelDigest digest;
  for (std::uint32_t t = 0; t < tensors.size(); ++t) {
    digest.begin_tensor(tensors[t].name, tensors[t].shape);
    digest.add(values(t, ArrayKind::kMaster));
  }
  return digest.hex();
}

TestJob::TestJob(std::string directory, std::uint32_t servers, std::uint64_t partition_elements)
    : directory_(std::move(directory)),
      partition_elements_(partition_elements),
      manifests_(value_or_throw(ManifestStore::open(directory_))) {
  for (std::uint32_t s = 0; s < servers; ++s)
    shards_.push_back(value_or_throw(ShardStore::open(directory_, ServerId(s))));
}

Result<Manifest> TestJob::write(const std::string& id, const TestModel& model) {
  Manifest manifest;
  manifest.id = id;
  manifest.created_unix_s = 1'700'000'000 + model.seed;
  manifest.tensors = model.tensors;
  manifest.state_arrays = model.state_arrays;
  manifest.settings = {{"seed", std::to_string(model.seed)}, {"staleness", "0"}};
  manifest.workers[0] = {Clock(model.seed), {std::byte{1}, std::byte{0xFF}}};
  manifest.workers[1] = {Clock(model.seed + 1), {}};
  for (std::uint32_t t = 0; t < model.tensors.size(); ++t) {
    const std::uint64_t elements = *element_count(model.tensors[t].shape);
    std::uint64_t at = 0;
    do {
      const auto server = static_cast<std::uint32_t>(manifest.partitions.size() % shards_.size());
      const std::uint64_t take = std::min(partition_elements_, elements - at);
      manifest.partitions.push_back({t, at, take, server});
      at += take;
    } while (at < elements);
  }
  for (std::uint32_t s = 0; s < shards_.size(); ++s) {
    auto writer = shards_[s]->begin(id, 8u << 20);
    if (!writer) return tl::unexpected(writer.error());
    if (Status wrote = write_shard(**writer, manifest, s, model); !wrote)
      return tl::unexpected(wrote.error());
    const auto finished = (*writer)->finish();
    if (!finished) return tl::unexpected(finished.error());
    manifest.shard_digests.push_back(finished->digest);
    manifest.bytes += finished->bytes;
  }
  return manifest;
}

Status TestJob::write_shard(ShardWriter& writer, const Manifest& manifest, std::uint32_t server,
                            const TestModel& model) const {
  for (const auto& [rank, worker] : manifest.workers)
    if (Status added = writer.add_worker(rank, worker); !added) return added;
  std::map<std::pair<std::uint32_t, ArrayKind>, std::vector<float>> made;
  for (std::uint32_t p = 0; p < manifest.partitions.size(); ++p) {
    const ManifestPartition& partition = manifest.partitions[p];
    if (partition.server != server) continue;
    for (std::uint32_t array = 0; array <= model.state_arrays; ++array) {
      const auto kind = static_cast<ArrayKind>(array);
      std::vector<float>& all = made[{partition.tensor, kind}];
      if (all.empty()) all = model.values(partition.tensor, kind);
      if (Status added = writer.add(PartitionId(p), kind,
                                    std::span(all).subspan(partition.begin, partition.elements));
          !added)
        return added;
    }
  }
  return {};
}

Manifest TestJob::save(const std::string& id, const TestModel& model) {
  Manifest manifest = value_or_throw(write(id, model));
  value_or_throw(manifests_->commit(manifest));
  return manifest;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

bool holds(const CheckpointReader& reader, const Manifest& manifest, const TestModel& model) {
  for (std::uint32_t t = 0; t < manifest.tensors.size(); ++t)
    for (std::uint32_t array = 0; array <= model.state_arrays; ++array) {
      const auto kind = static_cast<ArrayKind>(array);
      const std::vector<float> wanted = model.values(t, kind);
      std::vector<float> got(wanted.size());
      if (!reader.read(manifest, t, kind, 0, got) || !same_bits(got, wanted)) return false;
    }
  return true;
}

std::vector<std::filesystem::path> files_ending(const std::string& directory,
                                                const std::string& ending) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory))
    if (entry.is_regular_file() && entry.path().string().ends_with(ending))
      files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

void flip_byte(const std::filesystem::path& file, std::uint64_t offset) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(offset));
  const int byte = stream.get();
  stream.seekp(static_cast<std::streamoff>(offset));
  stream.put(static_cast<char>(byte ^ 0x10));
  if (!stream) throw std::runtime_error("cannot flip a byte of " + file.string());
}

}  // namespace leeway::storage::testing
