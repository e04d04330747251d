#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>

#include "test_job.h"

namespace leeway::storage {
namespace {

using testing::TempDir;
using testing::TestModel;

// A file system of 24 MiB that a test may fill.
class SmallDisk {
 public:
  SmallDisk() : mounted_(mount("leeway-test", dir_.path().c_str(), "tmpfs", 0, "size=24m") == 0) {}
  ~SmallDisk() {
    if (mounted_) umount2(dir_.path().c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  bool mounted() const {
    if (!mounted_) MESSAGE("skipped: a tmpfs can only be mounted by root");
    return mounted_;
  }
  std::string path(const std::string& name = "") const { return dir_.path(name); }

  // Takes all that is left; the last byte, too.
  void fill() const {
    const int fd = open(path("filler").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    const std::vector<char> block(4096, 'x');
    while (write(fd, block.data(), block.size()) > 0) continue;
    close(fd);
  }
  void drain() const { std::filesystem::remove(path("filler")); }

 private:
  TempDir dir_;
  const bool mounted_;
};

Manifest manifest_of(const std::string& id, std::uint64_t elements, const std::string& digest) {
  Manifest manifest;
  manifest.id = id;
  manifest.tensors = {{"w", {static_cast<std::int64_t>(elements)}}};
  manifest.partitions = {{0, 0, elements, 0}};
  manifest.shard_digests = {digest};
  return manifest;
}

// A whole checkpoint of 4 MiB can be written, committed and read.
void check_works(ShardStore& store, ManifestStore& manifests, const std::string& dir,
                 const std::string& id) {
  const std::vector<float> values(1u << 20, 2.0f);
  const auto writer = value_or_throw(store.begin(id, values.size() * sizeof(float)));
  REQUIRE(writer->add(PartitionId(0), ArrayKind::kMaster, values));
  const Manifest manifest = manifest_of(id, values.size(), value_or_throw(writer->finish()).digest);
  REQUIRE(manifests.commit(manifest));
  CHECK(value_or_throw(CheckpointReader::open(dir))->verify(manifest));
}

TEST_CASE("a store that may only be read is not called in use") {
  const SmallDisk disk;
  if (!disk.mounted()) return;
  value_or_throw(ManifestStore::open(disk.path()));
  REQUIRE(mount("", disk.path().c_str(), "", MS_REMOUNT | MS_RDONLY, nullptr) == 0);
  const auto store = ManifestStore::open(disk.path());
  REQUIRE(!store);
  CAPTURE(store.error().message);
  CHECK(store.error().code == Code::kInvalidArgument);
  CHECK(store.error().message.find("Read-only file system") != std::string::npos);
  CHECK(store.error().message.find("choose another checkpoint directory") != std::string::npos);
  CHECK(store.error().message.find("in use") == std::string::npos);
}

TEST_CASE("full disk: in the middle of a shard") {
  const SmallDisk disk;
  if (!disk.mounted()) return;
  const auto manifests = value_or_throw(ManifestStore::open(disk.path()));
  const auto store = value_or_throw(ShardStore::open(disk.path(), ServerId(0)));
  const std::vector<float> values(1u << 20, 1.0f);
  const auto writer = value_or_throw(store->begin("too-big", 0));
  Status added;
  for (std::uint32_t p = 0; added && p < 16; ++p)
    added = writer->add(PartitionId(p), ArrayKind::kMaster, values);
  REQUIRE(!added);
  CHECK(added.error().code == Code::kResourceExhausted);
  CHECK(added.error().message.find(disk.path("server-000") + " needs ") != std::string::npos);
  CHECK(std::filesystem::is_empty(disk.path("server-000/incoming")));
  CHECK(!writer->finish());
  check_works(*store, *manifests, disk.path(), "next");
}

TEST_CASE("full disk: between the last array and the end") {
  const SmallDisk disk;
  if (!disk.mounted()) return;
  const auto manifests = value_or_throw(ManifestStore::open(disk.path()));
  const auto store = value_or_throw(ShardStore::open(disk.path(), ServerId(0)));
  check_works(*store, *manifests, disk.path(), "before");
  const auto writer = value_or_throw(store->begin("late", 1000));
  REQUIRE(writer->add(PartitionId(0), ArrayKind::kMaster, std::vector<float>(1u << 20, 1.0f)));
  disk.fill();
  const auto finished = writer->finish();
  if (!finished) CHECK(finished.error().code == Code::kResourceExhausted);
  const auto refused = store->begin("later", 1000);
  REQUIRE(!refused);
  CHECK(refused.error().code == Code::kResourceExhausted);
  (void)store->prune({"before"});  // may fail; must not end the process
  disk.drain();
  check_works(*store, *manifests, disk.path(), "next");
  const auto reader = value_or_throw(CheckpointReader::open(disk.path()));
  CHECK(reader->verify(value_or_throw(reader->manifest("before"))));
}

TEST_CASE("full disk: the manifest store") {
  const SmallDisk disk;
  if (!disk.mounted()) return;
  const auto manifests = value_or_throw(ManifestStore::open(disk.path()));
  REQUIRE(manifests->put("incarnation", "1"));
  disk.fill();
  const Status committed = manifests->commit(manifest_of("c", 1, "d"));
  REQUIRE(!committed);
  CHECK(committed.error().code == Code::kResourceExhausted);
  const Status put = manifests->put("incarnation", std::string(1u << 20, '2'));
  REQUIRE(!put);
  CHECK(put.error().code == Code::kResourceExhausted);
  CHECK(put.error().message.find('\n') == std::string::npos);
  disk.drain();
  // What was refused has not happened.
  CHECK(value_or_throw(manifests->get("incarnation")) == "1");
  REQUIRE(manifests->put("incarnation", "3"));
  REQUIRE(manifests->commit(manifest_of("c", 1, "d")));
  CHECK(value_or_throw(manifests->list()).size() == 1);
}

}  // namespace
}  // namespace leeway::storage
