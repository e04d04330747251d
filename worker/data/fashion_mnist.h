// Fashion-MNIST (Xiao, Rasul, Vollgraf 2017): 60,000 training and 10,000 test images of 28 x 28
// grey values in 10 classes, as the Debian package dataset-fashion-mnist installs it. MNIST and
// other sets in the same four files are read too.
//
// The bytes stay as they are in memory; read() normalises them to FP16, (x / 255 - mean) /
// deviation with the training set's mean 0.2860 and deviation 0.3530, on the thread that calls it.
#pragma once

#include <array>
#include <filesystem>
#include <vector>

#include "worker/data/dataset.h"

namespace leeway::worker::data {

inline constexpr const char* kFashionMnistDirectory = "/usr/share/datasets/fashion-mnist";

class FashionMnist final : public Dataset {
 public:
  enum class Part { kTrain, kTest };
  // One line when the directory or a file is missing or damaged: which, and the package to install.
  static Result<FashionMnist> open(const std::filesystem::path& directory, Part part);

  std::uint64_t samples() const noexcept override { return labels_.size(); }
  std::uint64_t features() const noexcept override { return features_; }
  std::uint32_t classes() const noexcept override { return 10; }
  Status read(std::span<const std::uint64_t> indices, Half* features,
              std::int32_t* labels) const override;

 private:
  FashionMnist(std::vector<std::uint8_t> pixels, std::vector<std::uint8_t> labels,
               std::uint64_t features);
  std::vector<std::uint8_t> pixels_;
  std::vector<std::uint8_t> labels_;
  std::uint64_t features_;
  std::array<Half, 256> normalised_;
};

}  // namespace leeway::worker::data
