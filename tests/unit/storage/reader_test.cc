#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "test_job.h"

namespace leeway::storage {
namespace {

using testing::TempDir;
using testing::TestJob;
using testing::TestModel;

TEST_CASE("N6 reader: empty, scalar and large tensors, any servers and partitions, one digest") {
  const TestModel model = TestModel::small(11);
  for (const auto& [servers, partition] :
       {std::pair<std::uint32_t, std::uint64_t>{1, 1u << 20}, {2, 300'000}, {3, 77'777}}) {
    CAPTURE(servers);
    TempDir dir;
    TestJob job(dir.path(), servers, partition);
    const Manifest manifest = job.save("c", model);
    const auto reader = value_or_throw(CheckpointReader::open(dir.path()));
    CHECK(reader->verify(manifest));
    CHECK(testing::holds(*reader, manifest, model));
    CHECK(value_or_throw(reader->digest(manifest)) == model.digest());
  }
}

TEST_CASE("reader: any range of a tensor, whatever partitions it crosses") {
  TempDir dir;
  TestJob job(dir.path(), 3, 41'234);
  const TestModel model = TestModel::small(5);
  const Manifest manifest = job.save("c", model);
  const auto reader = value_or_throw(CheckpointReader::open(dir.path()));
  const std::vector<float> all = model.values(4, ArrayKind::kState0);
  std::mt19937_64 random(17);
  for (int i = 0; i < 60; ++i) {
    const std::uint64_t begin = random() % all.size();
    std::vector<float> got(random() % (i % 2 == 0 ? 100 : all.size() - begin + 1));
    got.resize(std::min<std::size_t>(got.size(), all.size() - begin));
    CAPTURE(begin);
    CAPTURE(got.size());
    REQUIRE(reader->read(manifest, 4, ArrayKind::kState0, begin, got));
    CHECK(testing::same_bits(got, std::span(all).subspan(begin, got.size())));
  }
}

TEST_CASE("reader: what is not there is the caller's mistake, by name") {
  TempDir dir;
  TestJob job(dir.path(), 1, 100'000);
  const Manifest manifest = job.save("c", TestModel::small(5));
  const auto reader = value_or_throw(CheckpointReader::open(dir.path()));
  std::vector<float> out(4);
  CHECK(reader->read(manifest, 9, ArrayKind::kMaster, 0, out).error().code ==
        Code::kInvalidArgument);
  CHECK(reader->read(manifest, 3, ArrayKind::kMaster, 0, out).error().message.find("d.three") !=
        std::string::npos);
  CHECK(!reader->read(manifest, 4, ArrayKind::kMaster, UINT64_MAX, out));
  CHECK(!reader->read(manifest, 4, ArrayKind::kState1, 0, out));
  const auto none = reader->manifest("missing");
  REQUIRE(!none);
  CHECK(none.error().code == Code::kNotFound);
  CHECK(none.error().message.find("leeway-ckpt list") != std::string::npos);
  CHECK(CheckpointReader::open(dir.path("nowhere")).error().code == Code::kNotFound);
}

TEST_CASE("reader: sees what a running job commits later") {
  TempDir dir;
  TestJob job(dir.path(), 2, 100'000);
  const auto empty = value_or_throw(CheckpointReader::open(dir.path()));
  CHECK(empty->manifests().empty());
  CHECK(empty->manifest("").error().code == Code::kNotFound);
  job.save("first", TestModel::small(1));
  const auto reader = value_or_throw(CheckpointReader::open(dir.path()));
  CHECK(testing::holds(*reader, value_or_throw(reader->manifest("")), TestModel::small(1)));
  job.save("second", TestModel::small(2));
  CHECK(testing::holds(*reader, value_or_throw(reader->manifest("second")), TestModel::small(2)));
  // Deleted under a reader that has it open.
  REQUIRE(job.manifests().forget("first"));
  for (std::uint32_t s : {0u, 1u}) REQUIRE(job.shard(s).prune({"second"}));
  CHECK(reader->verify(value_or_throw(reader->manifest("second"))));
  // And gone for one that comes after.
  const auto later = value_or_throw(CheckpointReader::open(dir.path()));
  CHECK(later->manifests().size() == 1);
  const Status gone = later->verify(value_or_throw(reader->manifest("first")));
  REQUIRE(!gone);
  CHECK(gone.error().message.find("missing") != std::string::npos);
}

TEST_CASE("reader: several threads, beside a writer") {
  TempDir dir;
  TestJob job(dir.path(), 2, 50'000);
  const TestModel model = TestModel::small(8);
  const Manifest manifest = job.save("c0", model);
  const auto reader = value_or_throw(CheckpointReader::open(dir.path()));
  std::atomic<int> good{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 3; ++t)
      threads.emplace_back([&] {
        for (int i = 0; i < 2; ++i) good += testing::holds(*reader, manifest, model) ? 1 : 0;
      });
    for (std::uint64_t i = 1; i <= 2; ++i) job.save("c" + std::to_string(i), TestModel::small(i));
  }
  CHECK(good == 6);
}

TEST_CASE("reader: a range of many megabytes is read by several threads") {
  TempDir dir;
  TestJob job(dir.path(), 2, 1u << 20);
  const TestModel model{{{"w", {5, 1 << 20}}}, 0, 4};
  const Manifest manifest = job.save("c", model);
  const auto reader = value_or_throw(CheckpointReader::open(dir.path()));
  CHECK(testing::holds(*reader, manifest, model));
  const auto tables = testing::files_ending(dir.path("server-001"), ".sst");
  REQUIRE(tables.size() == 1);
  testing::flip_byte(tables[0], 3u << 20);
  const auto after = value_or_throw(CheckpointReader::open(dir.path()));
  std::vector<float> out(5u << 20);
  CHECK(after->read(manifest, 0, ArrayKind::kMaster, 0, out).error().code == Code::kDataLoss);
}

TEST_CASE("K2 reader: one flipped byte of a table is found and named") {
  TempDir dir;
  const Manifest manifest = TestJob(dir.path("good"), 2, 100'000).save("c", TestModel::small(6));
  std::mt19937_64 random(23);
  for (int i = 0; i < 12; ++i) {
    const std::string copy = dir.path("copy" + std::to_string(i));
    std::filesystem::copy(dir.path("good"), copy, std::filesystem::copy_options::recursive);
    const auto tables = testing::files_ending(copy + "/server-001", ".sst");
    REQUIRE(tables.size() == 1);
    const std::uint64_t offset = random() % (std::filesystem::file_size(tables[0]) * 9 / 10);
    CAPTURE(offset);
    testing::flip_byte(tables[0], offset);
    const auto reader = value_or_throw(CheckpointReader::open(copy));
    const Status verified = reader->verify(manifest);
    REQUIRE(!verified);
    CHECK(verified.error().code == Code::kDataLoss);
    CHECK(verified.error().message.find("checkpoint 'c'") != std::string::npos);
    CHECK(verified.error().message.find("server-001") != std::string::npos);
    CHECK(verified.error().message.find(": tensor '") != std::string::npos);
    CHECK(verified.error().message.find('\n') == std::string::npos);
    CHECK(!reader->digest(manifest).has_value() ==
          !testing::holds(*reader, manifest, TestModel{manifest.tensors, 0, 6}));
    std::filesystem::remove_all(copy);
  }
}

TEST_CASE("K2 reader: a flipped byte anywhere never passes for other data") {
  TempDir dir;
  const TestModel model{{{"w", {3000}}}, 1, 6};
  TestJob(dir.path("good"), 1, 1000).save("c", model);
  std::mt19937_64 random(29);
  int refused = 0;
  for (int i = 0; i < 40; ++i) {
    const std::string copy = dir.path("copy" + std::to_string(i));
    std::filesystem::copy(dir.path("good"), copy, std::filesystem::copy_options::recursive);
    const auto files = testing::files_ending(copy, "");
    const auto& file = files[random() % files.size()];
    if (const auto size = std::filesystem::file_size(file))
      testing::flip_byte(file, random() % size);
    const auto reader = CheckpointReader::open(copy);
    const bool whole =
        reader && !(*reader)->manifests().empty() && (*reader)->verify((*reader)->manifests()[0]);
    CAPTURE(file.string());
    if (whole) CHECK(testing::holds(**reader, (*reader)->manifests()[0], model));
    refused += whole ? 0 : 1;
    std::filesystem::remove_all(copy);
  }
  CHECK(refused > 0);
}

// Worker 1's residual of this checkpoint, values known from a seed.
void save_residual(const std::string& directory, ShardStore& store, Manifest& manifest,
                   const std::string& shard, const TestModel& model) {
  auto writer = value_or_throw(store.begin(shard, 8u << 20));
  for (std::uint32_t p = 0; p < manifest.partitions.size(); ++p) {
    const ManifestPartition& partition = manifest.partitions[p];
    const auto all = model.values(partition.tensor, ArrayKind::kMaster);
    value_or_throw(writer->add(PartitionId(p), ArrayKind::kResidual,
                               std::span(all).subspan(partition.begin, partition.elements)));
  }
  manifest.workers.at(1).residual = {shard, value_or_throw(writer->finish()).digest};
  CHECK(std::filesystem::exists(directory + "/worker-001"));
}

TEST_CASE("reader: a worker's residual, whatever the partitions, is the checkpoint's alone") {
  const TempDir dir;
  const TestModel model = TestModel::small(3), residual = TestModel::small(9);
  {
    TestJob job(dir.path(), 2, 100'000);
    auto store = value_or_throw(ShardStore::open(dir.path(), WorkerId(1)));
    Manifest manifest = value_or_throw(job.write("000001", model));
    save_residual(dir.path(), *store, manifest, "000001", residual);
    value_or_throw(job.manifests().commit(manifest));
    Manifest never = value_or_throw(job.write("000002", model));
    save_residual(dir.path(), *store, never, "000002", residual);
    // The last of a worker is in every later checkpoint.
    Manifest last = value_or_throw(job.write("000003", model));
    save_residual(dir.path(), *store, last, "end-17", residual);
    value_or_throw(job.manifests().commit(last));
    value_or_throw(store->prune_uncommitted(""));
    CHECK_FALSE(store->begin("end-17", 100));
    CHECK(store->begin("000002", 100));  // which is nowhere
  }
  const auto reader = value_or_throw(CheckpointReader::open(dir.path()));
  for (const Manifest& manifest : reader->manifests()) {
    CHECK_FALSE(manifest.workers.at(0).residual);
    value_or_throw(reader->verify(manifest));
    for (std::uint32_t t = 0; t < manifest.tensors.size(); ++t) {
      const auto wanted = residual.values(t, ArrayKind::kMaster);
      std::vector<float> read(wanted.size());
      value_or_throw(reader->read_residual(manifest, WorkerId(1), t, read));
      CHECK(testing::same_bits(read, wanted));
    }
  }
}

TEST_CASE("K2 reader: a flipped byte of a residual is found and named") {
  const TempDir dir;
  {
    TestJob job(dir.path(), 1, 100'000);
    auto store = value_or_throw(ShardStore::open(dir.path(), WorkerId(1)));
    Manifest manifest = value_or_throw(job.write("000001", TestModel::small(3)));
    save_residual(dir.path(), *store, manifest, "000001", TestModel::small(9));
    value_or_throw(job.manifests().commit(manifest));
  }
  for (const auto& entry : std::filesystem::directory_iterator(dir.path("worker-001"))) {
    if (entry.path().extension() != ".sst") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(50'000);
    const char byte = static_cast<char>(file.get());
    file.seekp(50'000);
    file.put(static_cast<char>(byte ^ 4));
  }
  const auto reader = value_or_throw(CheckpointReader::open(dir.path()));
  const Manifest manifest = reader->manifests().front();
  const auto verified = reader->verify(manifest);
  REQUIRE_FALSE(verified);
  CHECK(verified.error().code == Code::kDataLoss);
  CHECK(verified.error().message.find("worker-001") != std::string::npos);
  CHECK(verified.error().message.find("residual") != std::string::npos);
}

TEST_CASE("K4 reader: an older shard in the place of a newer is refused") {
  TempDir dir;
  const std::string ckpt = dir.path("ckpt");
  {
    TestJob job(ckpt, 2, 100'000);
    job.save("step-1", TestModel::small(1));
  }
  std::filesystem::copy(ckpt + "/server-000", dir.path("older"),
                        std::filesystem::copy_options::recursive);
  Manifest newer;
  {
    TestJob job(ckpt, 2, 100'000);
    newer = job.save("step-2", TestModel::small(2));
  }
  std::filesystem::remove_all(ckpt + "/server-000");
  std::filesystem::rename(dir.path("older"), ckpt + "/server-000");
  const auto reader = value_or_throw(CheckpointReader::open(ckpt));
  const Status verified = reader->verify(newer);
  REQUIRE(!verified);
  CHECK(verified.error().code == Code::kDataLoss);
  CHECK(verified.error().message.find("server-000") != std::string::npos);
  CHECK(verified.error().message.find("missing") != std::string::npos);
  CHECK(reader->verify(value_or_throw(reader->manifest("step-1"))));
}

TEST_CASE("K4 reader: a shard of the same name from another run is refused, on any read") {
  TempDir dir;
  TestJob(dir.path("one"), 2, 100'000).save("step-1", TestModel::small(1));
  const Manifest manifest =
      TestJob(dir.path("two"), 2, 100'000).save("step-1", TestModel::small(1));
  std::filesystem::remove_all(dir.path("two/server-001"));
  std::filesystem::rename(dir.path("one/server-001"), dir.path("two/server-001"));
  const auto reader = value_or_throw(CheckpointReader::open(dir.path("two")));
  const Status verified = reader->verify(manifest);
  REQUIRE(!verified);
  CHECK(verified.error().message.find("another save") != std::string::npos);
  std::vector<float> out(100'000);
  CHECK(reader->read(manifest, 4, ArrayKind::kMaster, 0, out).has_value() !=
        reader->read(manifest, 4, ArrayKind::kMaster, 100'000, out).has_value());
  std::filesystem::remove_all(dir.path("two/server-001"));
  const auto without = value_or_throw(CheckpointReader::open(dir.path("two")));
  CHECK(without->verify(manifest).error().code == Code::kDataLoss);
}

TEST_CASE("K4 reader: a record too many or too few is refused") {
  TempDir dir;
  TestJob job(dir.path(), 1, 100'000);
  const Manifest manifest = job.save("c", TestModel::small(1));
  const auto reader = value_or_throw(CheckpointReader::open(dir.path()));
  Manifest fewer = manifest;
  fewer.workers.erase(1);
  CHECK(reader->verify(fewer).error().message.find("does not know") != std::string::npos);
  Manifest arrays = manifest;
  arrays.state_arrays = 0;
  CHECK(reader->verify(arrays).error().code == Code::kDataLoss);
  arrays.state_arrays = 2;
  CHECK(reader->verify(arrays).error().message.find("missing") != std::string::npos);
  Manifest digest = manifest;
  digest.shard_digests[0][3] ^= 1;
  CHECK(reader->verify(digest).error().message.find("not the one that was committed") !=
        std::string::npos);
}

}  // namespace
}  // namespace leeway::storage
