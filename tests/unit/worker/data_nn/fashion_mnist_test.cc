#include "worker/data/fashion_mnist.h"

#include <doctest/doctest.h>

#include <cmath>
#include <numeric>

#include "tests/unit/worker/data_nn/idx_bytes.h"
#include "tests/unit/worker/temporary_directory.h"

namespace leeway::worker::data {
namespace {

// The error of opening a directory with these files; "" when there is none.
std::string error_of(const Bytes& images, const Bytes& labels) {
  const TemporaryDirectory directory;
  directory.write("train-images-idx3-ubyte.gz", images);
  directory.write("train-labels-idx1-ubyte.gz", labels);
  const auto set = FashionMnist::open(directory.path(), FashionMnist::Part::kTrain);
  if (set) return "";
  CHECK(set.error().message.starts_with(directory.path().string() + "/train-"));
  CHECK(set.error().message.find('\n') == std::string::npos);
  return set.error().message;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("Fashion-MNIST is read and normalised") {
  const auto set =
      value_or_throw(FashionMnist::open(kFashionMnistDirectory, FashionMnist::Part::kTest));
  REQUIRE(set.samples() == 10'000);
  REQUIRE(set.features() == 784);
  std::vector<std::uint64_t> all(set.samples());
  std::iota(all.begin(), all.end(), std::uint64_t{0});
  std::vector<Half> features(set.samples() * set.features());
  std::vector<std::int32_t> labels(set.samples());
  REQUIRE(set.read(all, features.data(), labels.data()));
  std::vector<int> count(10);
  for (std::int32_t label : labels) ++count.at(static_cast<std::size_t>(label));
  CHECK(count == std::vector<int>(10, 1000));
  double sum = 0, squares = 0;
  for (Half half : features) {
    sum += to_float(half);
    squares += double{to_float(half)} * to_float(half);
  }
  const double n = static_cast<double>(features.size());
  CHECK(std::abs(sum / n) < 0.01);
  CHECK(std::abs(squares / n - 1) < 0.02);
  CHECK_FALSE(set.read(std::vector<std::uint64_t>{10'000}, features.data(), labels.data()));
}

TEST_CASE("a data set in plain files, in the order asked for") {
  const TemporaryDirectory directory;
  directory.write("train-images-idx3-ubyte", idx_bytes({3, 1, 2}, {0, 255, 1, 2, 255, 0}));
  directory.write("train-labels-idx1-ubyte", idx_bytes({3}, {7, 8, 9}));
  const auto set = value_or_throw(FashionMnist::open(directory.path(), FashionMnist::Part::kTrain));
  std::vector<Half> features(4);
  std::vector<std::int32_t> labels(2);
  REQUIRE(set.read(std::vector<std::uint64_t>{2, 0}, features.data(), labels.data()));
  CHECK(labels == std::vector<std::int32_t>{9, 7});
  const Half black = to_half(-0.2860f / 0.3530f), white = to_half(0.7140f / 0.3530f);
  CHECK(features == std::vector<Half>{white, black, black, white});
}

TEST_CASE("D4: a data set that does not fit together is refused") {
  const Bytes images = idx_bytes({3, 1, 2}, {0, 1, 2, 3, 4, 5});
  const Bytes labels = idx_bytes({3}, {7, 8, 9});
  CHECK(error_of(images, labels) == "");
  CHECK(contains(error_of(images, idx_bytes({2}, {7, 8})), "2 labels for the 3 images"));
  CHECK(contains(error_of(images, idx_bytes({3}, {7, 10, 9})), "label 10 of sample 1"));
  CHECK(contains(error_of(labels, labels), "1 dimensions where 3 are expected"));
  CHECK(contains(error_of(images, images), "3 dimensions where 1 are expected"));
  CHECK(contains(error_of(idx_bytes({0, 1, 2}, {}), idx_bytes({0}, {})), "no images"));
  CHECK(contains(error_of(gzip_bytes({}), labels), "cut short"));
}

TEST_CASE("a data set that is missing: the directory and the package are named") {
  const TemporaryDirectory directory;
  for (const auto& path : {directory.path(), directory.path() / "nowhere"}) {
    const auto set = FashionMnist::open(path, FashionMnist::Part::kTrain);
    REQUIRE_FALSE(set);
    CHECK(contains(set.error().message, path.string() + ": "));
    CHECK(contains(set.error().message, "dataset-fashion-mnist"));
    CHECK(set.error().message.find('\n') == std::string::npos);
  }
}

}  // namespace leeway::worker::data
