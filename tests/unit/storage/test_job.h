// A job's checkpoint side for tests: a model whose every value is known from a seed, saved over any
// number of servers. One thread.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "storage/checkpoint_store.h"

namespace leeway::storage::testing {

// Removed with everything in it.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string path(const std::string& name = "") const;

 private:
  std::filesystem::path path_;
};

struct TestModel {
  std::vector<ManifestTensor> tensors;
  std::uint32_t state_arrays = 1;
  std::uint64_t seed = 1;

  static TestModel small(std::uint64_t seed);  // empty, scalar and multi-chunk tensors
  // Any bit patterns, NaNs among them.
  std::vector<float> values(std::uint32_t tensor, ArrayKind kind) const;
  std::string digest() const;
};

class TestJob {
 public:
  TestJob(std::string directory, std::uint32_t servers, std::uint64_t partition_elements);
  // Writes all shards and says what is to be committed.
  Result<Manifest> write(const std::string& id, const TestModel& model);
  // The same, committed. Throws when anything fails.
  Manifest save(const std::string& id, const TestModel& model);
  ManifestStore& manifests() { return *manifests_; }
  ShardStore& shard(std::uint32_t server) { return *shards_[server]; }

 private:
  Status write_shard(ShardWriter& writer, const Manifest& manifest, std::uint32_t server,
                     const TestModel& model) const;

  std::string directory_;
  std::uint64_t partition_elements_;
  std::unique_ptr<ManifestStore> manifests_;
  std::vector<std::unique_ptr<ShardStore>> shards_;
};

bool same_bits(std::span<const float> a, std::span<const float> b);
// Every array of the checkpoint equals the model's.
bool holds(const CheckpointReader& reader, const Manifest& manifest, const TestModel& model);
std::vector<std::filesystem::path> files_ending(const std::string& directory,
                                                const std::string& ending);
void flip_byte(const std::filesystem::path& file, std::uint64_t offset);

}  // namespace leeway::storage::testing
