#include "storage/safetensors.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "test_job.h"

namespace leeway::storage {
namespace {

using testing::TempDir;

std::string bytes_of(const std::string& file) {
  std::stringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

void write_bytes(const std::string& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary) << bytes;
}

std::string with_header(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), 8) + header +
         std::string(data_bytes, '\0');
}

TEST_CASE("safetensors: the bytes are those of the documented layout") {
  TempDir dir;
  const std::string file = dir.path("x.safetensors");
  const auto writer = value_or_throw(SafetensorsWriter::create(file, {{"w", {2}}}, {}));
  REQUIRE(writer->add(std::vector<float>{1.0f, -2.0f}));
  REQUIRE(writer->finish());
  const std::string bytes = bytes_of(file);
  std::string header = R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  CHECK(bytes == with_header(header, 0) + std::string("\0\0\x80\x3f\0\0\0\xc0", 8));
}

TEST_CASE("safetensors: a link is followed, a pipe written into, and both stay what they are") {
  TempDir dir;
  const auto write = [](const std::string& file) {
    const auto writer = value_or_throw(SafetensorsWriter::create(file, {{"w", {2}}}, {}));
    value_or_throw(writer->add(std::vector<float>{1.0f, -2.0f}));
    value_or_throw(writer->finish());
  };
  const std::string plain = dir.path("plain");
  write(plain);
  std::filesystem::create_symlink("target", dir.path("link"));
  write(dir.path("link"));
  CHECK(std::filesystem::is_symlink(dir.path("link")));
  CHECK(bytes_of(dir.path("target")) == bytes_of(plain));

  const std::string pipe = dir.path("pipe");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  REQUIRE(reader >= 0);
  write(pipe);
  CHECK(std::filesystem::is_fifo(pipe));
  std::string bytes(4096, '\0');
  bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(0, ::read(reader, bytes.data(), 4096))));
  ::close(reader);
  CHECK(bytes == bytes_of(plain));
}

TEST_CASE("safetensors: what was written in pieces is read back") {
  TempDir dir;
  const auto model = testing::TestModel::small(4);
  const std::string file = dir.path("x.safetensors");
  std::vector<SafetensorsEntry> entries;
  for (const ManifestTensor& tensor : model.tensors) entries.push_back({tensor.name, tensor.shape});
  const auto writer =
      value_or_throw(SafetensorsWriter::create(file, entries, {{"from", "a test"}}));
  for (std::uint32_t t = 0; t < entries.size(); ++t) {
    const std::vector<float> values = model.values(t, ArrayKind::kMaster);
    const auto half = values.size() / 2;
    REQUIRE(writer->add(std::span(values).first(half)));
    REQUIRE(writer->add(std::span(values).subspan(half)));
  }
  CHECK(!writer->add(std::vector<float>(1)));
  REQUIRE(writer->finish());
  const auto reader = value_or_throw(SafetensorsReader::open(file));
  CHECK(reader->metadata().at("from") == "a test");
  REQUIRE(reader->tensors().size() == entries.size());
  for (std::uint32_t t = 0; t < entries.size(); ++t) {
    const std::vector<float> wanted = model.values(t, ArrayKind::kMaster);
    CHECK(reader->tensors().at(entries[t].name).shape == entries[t].shape);
    std::vector<float> got(wanted.size());
    REQUIRE(reader->read(entries[t].name, 0, got));
    CHECK(testing::same_bits(got, wanted));
  }
  std::vector<float> part(10);
  REQUIRE(reader->read("e.weight", 699'990, part));
  const std::vector<float> weight = model.values(4, ArrayKind::kMaster);
  CHECK(testing::same_bits(part, std::span(weight).last(10)));
  CHECK(!reader->read("e.weight", 699'991, part));
  CHECK(reader->read("none", 0, part).error().code == Code::kNotFound);
}

TEST_CASE("safetensors: a file that is not finished does not appear") {
  TempDir dir;
  const std::string file = dir.path("x.safetensors");
  write_bytes(file, "what was there");
  {
    const auto writer = value_or_throw(SafetensorsWriter::create(file, {{"w", {4}}}, {}));
    REQUIRE(writer->add(std::vector<float>(3)));
    CHECK(!writer->finish());
  }
  CHECK(bytes_of(file) == "what was there");
  CHECK(!std::filesystem::exists(file + ".tmp"));
  CHECK(!SafetensorsWriter::create(dir.path("no/such/dir"), {}, {}));
  CHECK(!SafetensorsWriter::create(file, {{"w", {4}}, {"w", {4}}}, {}));
  CHECK(!SafetensorsWriter::create(file, {{"__metadata__", {4}}}, {}));
  CHECK(!SafetensorsWriter::create(file, {{"\xff", {4}}}, {}));
}

TEST_CASE("safetensors: files that do not add up are refused") {
  TempDir dir;
  const std::string file = dir.path("x");
  const auto refused = [&](const std::string& bytes) {
    write_bytes(file, bytes);
    const auto reader = SafetensorsReader::open(file);
    return !reader && reader.error().code == Code::kDataLoss;
  };
  const auto entry = [](const std::string& shape, const std::string& offsets) {
    return R"({"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
  };
  CHECK(!refused(with_header(R"({"w":)" + entry("[2]", "[0,8]") + "}", 8)));
  CHECK(refused(""));
  CHECK(refused(std::string(8, '\xff')));
  CHECK(refused(with_header("[]", 0)));
  CHECK(refused(with_header(R"({"w":3})", 0)));
  CHECK(refused(with_header(R"({"w":)" + entry("[2]", "[0,8]") + "}", 7)));
  CHECK(refused(with_header(R"({"w":)" + entry("[2]", "[0,8]") + "}", 9)));
  CHECK(refused(with_header(R"({"w":)" + entry("[3]", "[0,8]") + "}", 8)));
  CHECK(refused(with_header(R"({"w":)" + entry("[-2]", "[0,8]") + "}", 8)));
  CHECK(refused(with_header(R"({"w":)" + entry("[2]", "[8,0]") + "}", 8)));
  CHECK(refused(with_header(R"({"w":)" + entry("[4294967296,4294967296]", "[0,0]") + "}", 0)));
  CHECK(refused(with_header(R"({"w":)" + entry("[4611686018427387904]", "[0,0]") + "}", 0)));
  CHECK(refused(with_header(
      R"({"v":)" + entry("[2]", "[0,8]") + R"(,"w":)" + entry("[2]", "[4,12]") + "}", 12)));
  CHECK(refused(with_header(
      R"({"v":)" + entry("[2]", "[0,8]") + R"(,"w":)" + entry("[2]", "[12,20]") + "}", 20)));
}

TEST_CASE("safetensors: no changed byte of the header crashes the reader") {
  TempDir dir;
  const std::string file = dir.path("x");
  const auto writer =
      value_or_throw(SafetensorsWriter::create(file, {{"v", {2}}, {"w", {2, 2}}}, {{"a", "b"}}));
  REQUIRE(writer->add(std::vector<float>(6, 1.0f)));
  REQUIRE(writer->finish());
  const std::string whole = bytes_of(file);
  std::mt19937_64 random(31);
  for (int i = 0; i < 100; ++i) {
    std::string changed = whole;
    changed[random() % (whole.size() - 24)] = static_cast<char>(random());
    write_bytes(file, changed);
    const auto reader = SafetensorsReader::open(file);
    if (!reader) continue;
    for (const auto& [name, tensor] : (*reader)->tensors()) {
      std::vector<float> values(tensor.bytes / sizeof(float));
      (void)(*reader)->read(name, 0, values);
    }
  }
}

}  // namespace
}  // namespace leeway::storage
