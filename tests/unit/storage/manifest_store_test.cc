#include <doctest/doctest.h>

#include "storage/manifest_codec.h"
#include "test_job.h"

namespace leeway::storage {
namespace {

using testing::TempDir;

Manifest sample(const std::string& id) {
  Manifest manifest;
  manifest.id = id;
  manifest.created_unix_s = 12345;
  manifest.tensors = {{"b\"ias", {}}, {"w", {2, 5}}};
  manifest.partitions = {{0, 0, 1, 0}, {1, 0, 6, 1}, {1, 6, 4, 0}};
  manifest.state_arrays = 2;
  manifest.settings = {{"seed", "1"}, {"update", "per_clock"}};
  manifest.workers[3] = {Clock(UINT64_MAX), {std::byte{0}, std::byte{0xAB}}};
  manifest.shard_digests = {"one", "two"};
  manifest.bytes = 1ull << 40;
  return manifest;
}

TEST_CASE("manifest: every field comes back") {
  const Manifest before = sample("c");
  const Manifest after =
      value_or_throw(decode_manifest("c", value_or_throw(encode_manifest(before))));
  CHECK(after.id == before.id);
  CHECK(after.created_unix_s == before.created_unix_s);
  REQUIRE(after.tensors.size() == 2);
  CHECK(after.tensors[0].name == "b\"ias");
  CHECK(after.tensors[0].shape.empty());
  CHECK(after.tensors[1].shape == Shape{2, 5});
  REQUIRE(after.partitions.size() == 3);
  CHECK(after.partitions[2].tensor == 1);
  CHECK(after.partitions[2].begin == 6);
  CHECK(after.partitions[2].elements == 4);
  CHECK(after.partitions[1].server == 1);
  CHECK(after.state_arrays == 2);
  CHECK(after.settings == before.settings);
  REQUIRE(after.workers.count(3) == 1);
  CHECK(after.workers.at(3).clock == Clock(UINT64_MAX));
  CHECK(after.workers.at(3).state == before.workers.at(3).state);
  CHECK(after.shard_digests == before.shard_digests);
  CHECK(after.bytes == before.bytes);
  CHECK(check_manifest(after));
}

TEST_CASE("manifest: no changed byte crashes the decoder") {
  const std::string text = value_or_throw(encode_manifest(sample("c")));
  for (std::size_t at = 0; at < text.size(); ++at)
    for (char to : {'9', '"', '}'}) {
      std::string changed = text;
      changed[at] = to;
      if (const auto manifest = decode_manifest("c", changed)) (void)check_manifest(*manifest);
    }
  for (std::size_t cut = 0; cut < text.size(); ++cut)
    CHECK(!decode_manifest("c", text.substr(0, cut)));
  CHECK(decode_manifest("c", std::string(1u << 20, '[')).error().code == Code::kDataLoss);
}

TEST_CASE("manifest: another version and another checkpoint's manifest are refused") {
  std::string text = value_or_throw(encode_manifest(sample("c")));
  CHECK(decode_manifest("d", text).error().code == Code::kDataLoss);
  const std::string key = "\"leeway_manifest\":1";
  text.replace(text.find(key), key.size(), "\"leeway_manifest\":2");
  const auto refused = decode_manifest("c", text);
  REQUIRE(!refused);
  CHECK(refused.error().code == Code::kUnsupported);
  CHECK(refused.error().message.find("version 2") != std::string::npos);
}

TEST_CASE("manifest: partitions that do not cover their tensor are refused") {
  const auto broken = [](auto change) {
    Manifest manifest = sample("c");
    change(manifest);
    return !check_manifest(manifest);
  };
  CHECK(broken([](Manifest& m) { m.partitions.pop_back(); }));
  CHECK(broken([](Manifest& m) { m.partitions[2].begin = 7; }));
  CHECK(broken([](Manifest& m) { m.partitions[2].elements = 5; }));
  CHECK(broken([](Manifest& m) { m.partitions[0].server = 2; }));
  CHECK(broken([](Manifest& m) { m.partitions.push_back({2, 0, 1, 0}); }));
  CHECK(broken([](Manifest& m) { std::swap(m.tensors[0], m.tensors[1]); }));
  CHECK(broken([](Manifest& m) { m.state_arrays = 3; }));
}

TEST_CASE("manifest store: commit order, forget, facts, all across a restart") {
  TempDir dir;
  {
    const auto store = value_or_throw(ManifestStore::open(dir.path("ckpt")));
    for (const char* id : {"z", "a", "m"}) REQUIRE(store->commit(sample(id)));
    CHECK(store->commit(sample("a")).error().code == Code::kAlreadyExists);
    CHECK(store->commit(sample("a/b")).error().code == Code::kInvalidArgument);
    REQUIRE(store->forget("a"));
    CHECK(store->forget("a").error().code == Code::kNotFound);
    REQUIRE(store->put("incarnation", "41"));
    REQUIRE(store->put("incarnation", "42"));
    CHECK(value_or_throw(store->get("job")) == std::nullopt);
  }
  const auto store = value_or_throw(ManifestStore::open(dir.path("ckpt")));
  CHECK(value_or_throw(store->get("incarnation")) == "42");
  REQUIRE(store->commit(sample("b")));
  std::vector<std::string> ids;
  for (const Manifest& manifest : value_or_throw(store->list())) ids.push_back(manifest.id);
  CHECK(ids == std::vector<std::string>{"z", "m", "b"});
}

TEST_CASE("K6 manifest store: the second opener is refused by name") {
  TempDir dir;
  const auto first = value_or_throw(ManifestStore::open(dir.path()));
  const auto second = ManifestStore::open(dir.path());
  REQUIRE(!second);
  CHECK(second.error().code == Code::kRefused);
  CHECK(second.error().message.find(dir.path("manifest")) != std::string::npos);
  CHECK(second.error().message.find("in use by this process itself") != std::string::npos);
  CHECK(first->put("still", "works"));
}

TEST_CASE("manifest store: a directory that cannot be made is one line") {
  const auto store = ManifestStore::open("/proc/none");
  REQUIRE(!store);
  CHECK(store.error().message.find("/proc/none/manifest") != std::string::npos);
  CHECK(store.error().message.find('\n') == std::string::npos);
}

}  // namespace
}  // namespace leeway::storage
