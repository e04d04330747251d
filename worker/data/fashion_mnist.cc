#include "worker/data/fashion_mnist.h"

#include <fmt/format.h>

#include <algorithm>

#include "worker/data/idx.h"

namespace leeway::worker::data {

namespace {

constexpr double kMean = 0.2860;
constexpr double kDeviation = 0.3530;

// With or without ".gz": some mirrors and users unpack the files.
Result<std::filesystem::path> find_file(const std::filesystem::path& directory,
                                        const std::string& name) {
  for (const char* suffix : {"", ".gz"}) {
    std::error_code ignored;
    std::filesystem::path path = directory / (name + suffix);
    if (std::filesystem::exists(path, ignored)) return path;
  }
  return fail(Code::kNotFound,
              fmt::format("no data set in {}: {}.gz is not there; install the Debian package "
                          "dataset-fashion-mnist or name its directory",
                          directory.string(), name));
}

Result<IdxArray> read_part(const std::filesystem::path& directory, const std::string& name,
                           std::uint8_t rank) {
  auto path = find_file(directory, name);
  if (!path) return tl::unexpected(path.error());
  return read_idx(*path, rank);
}

}  // namespace

Result<FashionMnist> FashionMnist::open(const std::filesystem::path& directory, Part part) {
  const std::string prefix = part == Part::kTrain ? "train" : "t10k";
  const std::string images_name = prefix + "-images-idx3-ubyte";
  const std::string labels_name = prefix + "-labels-idx1-ubyte";
  auto images = read_part(directory, images_name, 3);
  if (!images) return tl::unexpected(images.error());
  auto labels = read_part(directory, labels_name, 1);
  if (!labels) return tl::unexpected(labels.error());

  const auto damaged = [&](const std::string& file, std::string what) {
    return fail(Code::kDataLoss, fmt::format("{}: {}", (directory / file).string(), what));
  };
  if (images->dimensions[0] != labels->dimensions[0])
    return damaged(labels_name,
                   fmt::format("{} labels for the {} images of {}", labels->dimensions[0],
                               images->dimensions[0], images_name));
  const std::uint64_t features = std::uint64_t{images->dimensions[1]} * images->dimensions[2];
  if (images->elements.empty()) return damaged(images_name, "it holds no images");
  const auto wrong = std::ranges::find_if(labels->elements, [](std::uint8_t l) { return l > 9; });
  if (wrong != labels->elements.end())
    return damaged(labels_name, fmt::format("label {} of sample {} is not in 0..9", *wrong,
                                            wrong - labels->elements.begin()));
  return FashionMnist(std::move(images->elements), std::move(labels->elements), features);
}

FashionMnist::FashionMnist(std::vector<std::uint8_t> pixels, std::vector<std::uint8_t> labels,
                           std::uint64_t features)
    : pixels_(std::move(pixels)), labels_(std::move(labels)), features_(features) {
  for (std::size_t value = 0; value < normalised_.size(); ++value)
    normalised_[value] =
        to_half(static_cast<float>((static_cast<double>(value) / 255.0 - kMean) / kDeviation));
}

Status FashionMnist::read(std::span<const std::uint64_t> indices, Half* features,
                          std::int32_t* labels) const {
  for (std::uint64_t index : indices) {
    if (index >= labels_.size())
      return fail(Code::kInvalidArgument,
                  fmt::format("sample {} of a data set of {}", index, labels_.size()));
    const std::uint8_t* pixels = pixels_.data() + index * features_;
    features = std::transform(pixels, pixels + features_, features,
                              [this](std::uint8_t value) { return normalised_[value]; });
    *labels++ = labels_[index];
  }
  return {};
}

}  // namespace leeway::worker::data
