// The command line of fashion_mnist.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <variant>

#include "kernels/backend.h"

namespace leeway::examples {

// The defaults are for three workers whose every push is applied: small batches and a small
// learning rate bear the delays of staleness better than large ones do.
struct FashionMnistFlags {
  std::uint32_t epochs = 8;
  std::uint32_t batch = 32;  // of one worker, each of the parts of a step
  std::uint32_t width = 256;
  double learning_rate = 0.004;
  std::optional<std::uint64_t> seed;
  std::filesystem::path data;
  kernels::BackendChoice device = kernels::BackendChoice::kAuto;
  std::uint32_t accumulate = 1;
  double target_accuracy = 0;  // 0 = none
  std::uint32_t evaluate_every = 100;
};

// What main is to print and return at once: --help (0) or a mistake (2).
struct Goodbye {
  int exit_code = 0;
  std::string text;
};

std::variant<FashionMnistFlags, Goodbye> parse_fashion_mnist_flags(int argc,
                                                                   const char* const* argv);

}  // namespace leeway::examples
