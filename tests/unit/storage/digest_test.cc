#include "storage/digest.h"

#include <doctest/doctest.h>

#include <vector>

#include "storage/records.h"
#include "test_job.h"

namespace leeway::storage {
namespace {

std::string digest_of(std::string_view name, const Shape& shape, std::vector<float> values) {
  ModelDigest digest;
  digest.begin_tensor(name, shape);
  digest.add(values);
  return digest.hex();
}

TEST_CASE("digest: names, shapes and every bit count") {
  const std::string base = digest_of("w", {2, 3}, {1, 2, 3, 4, 5, 6});
  CHECK(base.size() == 32);
  CHECK(base == digest_of("w", {2, 3}, {1, 2, 3, 4, 5, 6}));
  CHECK(base != digest_of("v", {2, 3}, {1, 2, 3, 4, 5, 6}));
  CHECK(base != digest_of("w", {3, 2}, {1, 2, 3, 4, 5, 6}));
  CHECK(base != digest_of("w", {2, 3}, {1, 2, 3, 4, 5, 7}));
  CHECK(digest_of("w", {1}, {0.0f}) != digest_of("w", {1}, {-0.0f}));
  CHECK(digest_of("w", {0}, {}) != digest_of("w", {0, 128}, {}));
}

TEST_CASE("digest: the byte stream is fixed for ever") {
  // xxhsum -H2 of the stream that digest.cc documents.
  CHECK(ModelDigest().hex() == "01bd31a568110b72d2c5dbc2eabbcca7");
  CHECK(digest_of("w", {1}, {1.0f}) == "48f7124a7ea436a2df40b6a3da36d640");
}

TEST_CASE("digest: pieces do not matter") {
  const auto model = testing::TestModel::small(3);
  ModelDigest digest;
  for (std::uint32_t t = 0; t < model.tensors.size(); ++t) {
    digest.begin_tensor(model.tensors[t].name, model.tensors[t].shape);
    const std::vector<float> values = model.values(t, ArrayKind::kMaster);
    for (std::size_t at = 0; at < values.size(); at += 777)
      digest.add(std::span(values).subspan(at, std::min<std::size_t>(777, values.size() - at)));
  }
  CHECK(digest.hex() == model.digest());
}

TEST_CASE("N7 records: places beyond 2^32 elements") {
  const std::uint64_t elements = (1ull << 31) + 8;
  CHECK(chunks_of(elements) == 8193);
  CHECK(chunks_of(0) == 1);
  CHECK(chunks_of(kChunkElements) == 1);
  CHECK(chunks_of(kChunkElements + 1) == 2);
  const std::string low = encode_key("c", RecordKey::array(255, ArrayKind::kState1, 255));
  const std::string high = encode_key("c", RecordKey::array(256, ArrayKind::kMaster, 0));
  CHECK(low < high);
  CHECK(high < encode_key("c", RecordKey::worker(0)));
  CHECK(encode_key("c", RecordKey::worker(UINT32_MAX)) < encode_key("c", RecordKey::end()));
  CHECK(encode_key("c", RecordKey::end()) < id_end("c"));
  CHECK(id_end("c") < id_begin("ca"));
}

TEST_CASE("records: a record is refused in another place and when cut or changed") {
  const std::string key = encode_key("c", RecordKey::array(1, ArrayKind::kMaster, 2));
  std::string value;
  encode_record(key, {RecordType::kArray, 7, 2 * kChunkElements, "payload!"}, value);
  const auto whole = decode_record(key, value);
  REQUIRE(whole);
  CHECK(whole->payload == "payload!");
  CHECK(whole->save == 7);
  CHECK(whole->first == 2 * kChunkElements);
  CHECK(!decode_record(encode_key("c", RecordKey::array(1, ArrayKind::kMaster, 3)), value));
  for (std::size_t cut = 0; cut < value.size(); ++cut)
    CHECK(!decode_record(key, std::string_view(value).substr(0, cut)));
  for (std::size_t at = 0; at < value.size(); ++at) {
    std::string changed = value;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    CHECK(!decode_record(key, changed));
  }
}

TEST_CASE("records: checkpoint ids that would be paths or keys of others are refused") {
  CHECK(check_checkpoint_id("step-00000100"));
  for (const std::string& id : {std::string(), std::string("../x"), std::string("a b"),
                                std::string("a\0b", 3), std::string(129, 'a')})
    CHECK(!check_checkpoint_id(id));
}

}  // namespace
}  // namespace leeway::storage
