#include "worker/data/idx.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <numeric>

#include "tests/unit/worker/data_nn/idx_bytes.h"
#include "tests/unit/worker/temporary_directory.h"
#include "worker/random.h"

namespace leeway::worker::data {
namespace {

Bytes counting(std::size_t count) {
  Bytes bytes(count);
  std::iota(bytes.begin(), bytes.end(), std::uint8_t{0});
  return bytes;
}

// The error of reading `bytes`, which is one line and names the file; "" when it can be read.
std::string error_of(const Bytes& bytes, std::uint8_t rank = 3) {
  const TemporaryDirectory directory;
  const auto path = directory.write("data", bytes);
  const auto array = read_idx(path, rank);
  if (array) return "";
  const std::string message = array.error().message;
  CHECK(message.starts_with(path.string() + ": "));
  CHECK(message.find('\n') == std::string::npos);
  CHECK(array.error().code == Code::kDataLoss);
  return message;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("D4: plain and gzipped IDX files hold the same, whatever they are called") {
  const TemporaryDirectory directory;
  const Bytes elements = counting(2 * 3 * 4);
  const Bytes plain = idx_bytes({2, 3, 4}, elements);
  Bytes members = gzip_bytes({plain.begin(), plain.begin() + 9});  // two gzip members are one file
  const Bytes rest = gzip_bytes({plain.begin() + 9, plain.end()});
  members.insert(members.end(), rest.begin(), rest.end());
  for (const auto& path :
       {directory.write("a", plain), directory.write("b.gz", plain),
        directory.write("c", gzip_bytes(plain)), directory.write("d.gz", gzip_bytes(plain)),
        directory.write("e.gz", members)}) {
    CAPTURE(path);
    const auto array = read_idx(path, 3);
    REQUIRE(array);
    CHECK(array->dimensions == std::vector<std::uint32_t>{2, 3, 4});
    CHECK(array->elements == elements);
  }
}

TEST_CASE("D4: an IDX file cut short anywhere is refused, plain and gzipped") {
  const Bytes plain = idx_bytes({2, 3, 4}, counting(24));
  for (std::size_t length = 0; length < plain.size(); ++length) {
    CAPTURE(length);
    // Up to 16 bytes the header is cut; below 24 the file cannot hold the elements it promises.
    CHECK(contains(
        error_of({plain.begin(), plain.begin() + static_cast<long>(length)}),
        length >= 16 && length < 24 ? "more than a file of its size can hold" : "cut short"));
  }
  const Bytes packed = gzip_bytes(plain);
  for (std::size_t length = 0; length < packed.size(); ++length) {
    CAPTURE(length);
    CHECK(error_of({packed.begin(), packed.begin() + static_cast<long>(length)}) != "");
  }
  // A whole gzip file around a cut IDX file.
  CHECK(contains(error_of(gzip_bytes({plain.begin(), plain.begin() + 20})),
                 "cut short: its header promises 2 x 3 x 4 bytes, 4 are there"));
}

TEST_CASE("D4: what is not an IDX file of bytes is refused") {
  Bytes bytes = idx_bytes({2, 3, 4}, counting(24));
  bytes[1] = 7;
  CHECK(contains(error_of(bytes), "not an IDX file"));
  bytes[1] = 0;
  bytes[2] = 0x0D;
  CHECK(contains(error_of(bytes), "type 0x0d"));
  CHECK(contains(error_of(idx_bytes({24}, counting(24))), "1 dimensions where 3 are expected"));
  CHECK(contains(error_of(idx_bytes({2, 3, 4}, counting(25))), "bytes left over"));
}

TEST_CASE("D4: a damaged gzip file is refused") {
  const Bytes packed = gzip_bytes(idx_bytes({2, 3, 4}, counting(24)));
  Bytes trailing = packed;
  trailing.push_back('x');
  CHECK(error_of(trailing) != "");
  Bytes checksum = packed;
  checksum[checksum.size() - 8] ^= 1;
  CHECK(contains(error_of(checksum), "damaged gzip data"));
  // Any one flipped bit past the file's name and time is noticed or changes nothing that is read.
  for (std::size_t i = 10; i < packed.size(); ++i) {
    Bytes flipped = packed;
    flipped[i] ^= 4;
    CAPTURE(i);
    CHECK(error_of(flipped) != "");
  }
}

TEST_CASE("D4: dimensions that lie take no memory") {
  rusage before{};
  getrusage(RUSAGE_SELF, &before);
  const std::uint32_t huge = 0xFFFFFFFF;
  CHECK(contains(error_of(idx_bytes({huge, huge, huge}, counting(24))), "can hold"));
  CHECK(contains(error_of(idx_bytes({huge}, counting(24)), 1), "can hold"));
  CHECK(contains(error_of(gzip_bytes(idx_bytes({huge, 28, 28}, counting(24)))), "can hold"));
  // As much as gzip could hold in a file of 1 MB: refused when the bytes do not come.
  Bytes noise(1 << 20);
  Random random(4);
  for (auto& byte : noise) byte = static_cast<std::uint8_t>(random.next());
  CHECK(contains(error_of(gzip_bytes(idx_bytes({1'000'000'000}, noise)), 1),
                 "cut short: its header promises 1000000000 bytes, 1048576 are there"));
  rusage after{};
  getrusage(RUSAGE_SELF, &after);
  CHECK(after.ru_maxrss - before.ru_maxrss < 256 * 1024);  // KiB
}

TEST_CASE("IDX: no elements, and no file to read") {
  const TemporaryDirectory directory;
  const auto empty = read_idx(directory.write("empty", idx_bytes({0, 28, 28}, {})), 3);
  REQUIRE(empty);
  CHECK(empty->elements.empty());
  CHECK(read_idx(directory.path() / "absent", 1).error().code == Code::kNotFound);
  CHECK(contains(read_idx(directory.path(), 1).error().message, "not a regular file"));
  const auto pipe = directory.path() / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(contains(read_idx(pipe, 1).error().message, "not a regular file"));
}

}  // namespace leeway::worker::data
