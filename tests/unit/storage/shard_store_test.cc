#include <doctest/doctest.h>
#include <sys/mman.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "test_job.h"

namespace leeway::storage {
namespace {

using testing::TempDir;
using testing::TestJob;
using testing::TestModel;

std::uint64_t table_bytes(const std::string& directory) {
  std::uint64_t sum = 0;
  for (const auto& file : testing::files_ending(directory, ".sst"))
    if (std::error_code gone; true) {
      const auto size = std::filesystem::file_size(file, gone);
      if (!gone) sum += size;
    }
  return sum;
}

// RocksDB deletes files on a thread of its own.
bool shrinks_to(const std::string& directory, std::uint64_t bytes) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (table_bytes(directory) > bytes) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST_CASE("shard store: arrays out of order and use after the end are refused") {
  TempDir dir;
  const auto store = value_or_throw(ShardStore::open(dir.path(), ServerId(0)));
  const auto writer = value_or_throw(store->begin("c", 100));
  const std::vector<float> values(10, 1.0f);
  REQUIRE(writer->add(PartitionId(1), ArrayKind::kMaster, values));
  CHECK(!writer->add(PartitionId(1), ArrayKind::kMaster, values));
  CHECK(!writer->add(PartitionId(0), ArrayKind::kState1, values));
  REQUIRE(writer->add(PartitionId(1), ArrayKind::kState0, values));
  REQUIRE(writer->add_worker(5, {Clock(1), {}}));
  CHECK(!writer->add_worker(5, {Clock(1), {}}));
  REQUIRE(writer->add_worker(2, {Clock(1), {}}));
  REQUIRE(writer->finish());
  CHECK(!writer->add(PartitionId(2), ArrayKind::kMaster, values));
  CHECK(!writer->finish());
  CHECK(!store->begin("no/path", 1));
}

TEST_CASE("shard store: a shard without any array is one") {
  TempDir dir;
  const auto store = value_or_throw(ShardStore::open(dir.path(), ServerId(0)));
  CHECK(value_or_throw(store->begin("c", 0))->finish());
}

TEST_CASE("shard store: a writer that is given up leaves no file") {
  TempDir dir;
  const auto store = value_or_throw(ShardStore::open(dir.path(), ServerId(7)));
  {
    const auto writer = value_or_throw(store->begin("c", 4000));
    REQUIRE(writer->add(PartitionId(0), ArrayKind::kMaster, std::vector<float>(1000, 1.0f)));
    CHECK(testing::files_ending(dir.path("server-007/incoming"), ".sst").size() == 1);
  }
  CHECK(testing::files_ending(dir.path("server-007"), ".sst").empty());
  CHECK(value_or_throw(store->begin("c", 4000))->finish());
}

TEST_CASE("K2 shard store: what a crash left is removed at the next start") {
  TempDir dir;
  {
    TestJob job(dir.path(), 1, 100'000);
    job.save("whole", TestModel::small(1));
    REQUIRE(job.write("uncommitted", TestModel::small(2)));
  }
  const std::uint64_t both = table_bytes(dir.path("server-000"));
  std::ofstream(dir.path("server-000/incoming/9.sst")) << "half a table";
  std::ofstream(dir.path("server-000/000999.sst")) << "a table nobody knows";
  std::ofstream(dir.path("server-000/000998.dbtmp")) << "a temporary file";
  const auto store = value_or_throw(ShardStore::open(dir.path(), ServerId(0)));
  CHECK(std::filesystem::is_empty(dir.path("server-000/incoming")));
  CHECK(!std::filesystem::exists(dir.path("server-000/000999.sst")));
  CHECK(!std::filesystem::exists(dir.path("server-000/000998.dbtmp")));
  CHECK(shrinks_to(dir.path("server-000"), both * 6 / 10));
  const auto reader = value_or_throw(CheckpointReader::open(dir.path()));
  REQUIRE(reader->manifests().size() == 1);
  CHECK(reader->verify(reader->manifests()[0]));
  // The same name may be used again, and is then the new shard alone.
  CHECK(value_or_throw(store->begin("uncommitted", 10))->finish());
}

TEST_CASE("shard store: a name is written again only while it is not committed") {
  TempDir dir;
  TestJob job(dir.path(), 1, 100'000);
  REQUIRE(job.write("c", TestModel::small(1)));
  TestModel shorter = TestModel::small(2);
  shorter.tensors.pop_back();
  const Manifest manifest = job.save("c", shorter);
  const auto reader = value_or_throw(CheckpointReader::open(dir.path()));
  CHECK(reader->verify(manifest));
  CHECK(testing::holds(*reader, manifest, shorter));
  const auto again = job.shard(0).begin("c", 10);
  REQUIRE(!again);
  CHECK(again.error().code == Code::kAlreadyExists);
}

TEST_CASE("shard store: pruning gives the space back and keeps the rest whole") {
  TempDir dir;
  TestJob job(dir.path(), 2, 100'000);
  for (std::uint64_t i = 1; i <= 4; ++i) job.save("c" + std::to_string(i), TestModel::small(i));
  const std::uint64_t before = table_bytes(dir.path("server-000"));
  for (const char* id : {"c1", "c3"}) REQUIRE(job.manifests().forget(id));
  for (std::uint32_t s : {0u, 1u}) REQUIRE(job.shard(s).prune({"c2", "c4"}));
  CHECK(shrinks_to(dir.path("server-000"), before * 6 / 10));
  const auto reader = value_or_throw(CheckpointReader::open(dir.path()));
  REQUIRE(reader->manifests().size() == 2);
  CHECK(testing::holds(*reader, reader->manifests()[0], TestModel::small(2)));
  CHECK(testing::holds(*reader, reader->manifests()[1], TestModel::small(4)));
  CHECK(reader->verify(reader->manifests()[0]));
  CHECK(reader->verify(reader->manifests()[1]));
}

TEST_CASE("K6 shard store: two servers on one directory") {
  TempDir dir;
  const auto first = value_or_throw(ShardStore::open(dir.path(), ServerId(0)));
  const auto second = ShardStore::open(dir.path(), ServerId(0));
  REQUIRE(!second);
  CHECK(second.error().code == Code::kRefused);
  CHECK(second.error().message.find(dir.path("server-000") + " is in use by") != std::string::npos);
  CHECK(ShardStore::open(dir.path(), ServerId(1)));
}

TEST_CASE("shard store: too little space is said before anything is written") {
  TempDir dir;
  const auto store = value_or_throw(ShardStore::open(dir.path(), ServerId(0)));
  const auto writer = store->begin("c", 1ull << 60);
  REQUIRE(!writer);
  CHECK(writer.error().code == Code::kResourceExhausted);
  CHECK(writer.error().message.find(dir.path("server-000") + " needs 11") != std::string::npos);
  CHECK(writer.error().message.find("choose another checkpoint directory") != std::string::npos);
  CHECK(std::filesystem::is_empty(dir.path("server-000/incoming")));
}

TEST_CASE("N7 shard store: an array of 2^31 + 8 elements") {
  if (std::getenv("LEEWAY_TEST_HUGE") == nullptr) {
    MESSAGE("skipped: writes 8 GiB; set LEEWAY_TEST_HUGE=1 to run it");
    return;
  }
  TempDir dir;
  const std::uint64_t elements = (1ull << 31) + 8;
  // Untouched pages are zeros that take no memory.
  void* const memory = mmap(nullptr, elements * sizeof(float), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  const std::span<float> values(static_cast<float*>(memory), elements);
  values.back() = 42.0f;
  values[1ull << 30] = 7.0f;
  const auto manifests = value_or_throw(ManifestStore::open(dir.path()));
  const auto store = value_or_throw(ShardStore::open(dir.path(), ServerId(0)));
  const auto writer = value_or_throw(store->begin("c", values.size_bytes()));
  REQUIRE(writer->add(PartitionId(0), ArrayKind::kMaster, values));
  Manifest manifest;
  manifest.id = "c";
  manifest.tensors = {{"table", {static_cast<std::int64_t>(elements)}}};
  manifest.partitions = {{0, 0, elements, 0}};
  manifest.shard_digests = {value_or_throw(writer->finish()).digest};
  REQUIRE(manifests->commit(manifest));
  munmap(memory, elements * sizeof(float));
  const auto reader = value_or_throw(CheckpointReader::open(dir.path()));
  CHECK(reader->verify(manifest));
  std::vector<float> tail(10);
  REQUIRE(reader->read(manifest, 0, ArrayKind::kMaster, elements - 10, tail));
  CHECK(tail.back() == 42.0f);
  CHECK(tail.front() == 0.0f);
  REQUIRE(reader->read(manifest, 0, ArrayKind::kMaster, 1ull << 30, tail));
  CHECK(tail.front() == 7.0f);
}

}  // namespace
}  // namespace leeway::storage
