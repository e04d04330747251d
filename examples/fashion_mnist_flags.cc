#include "examples/fashion_mnist_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "worker/data/fashion_mnist.h"

namespace leeway::examples {

std::variant<FashionMnistFlags, Goodbye> parse_fashion_mnist_flags(int argc,
                                                                   const char* const* argv) {
  FashionMnistFlags flags;
  flags.data = worker::data::kFashionMnistDirectory;
  std::string data = flags.data.string();
  std::string device = "auto";
  std::uint64_t seed = 0;

  CLI::App app(
      "Trains a perceptron with two hidden layers on Fashion-MNIST, as one worker of a job:\n"
      "  leeway-run --servers 2 --workers 3 --staleness 2 -- fashion_mnist [FLAGS]",
      "fashion_mnist");
  app.get_formatter()->column_width(28);
  const CLI::Range positive(std::uint32_t{1}, std::uint32_t{1} << 20, "1..1048576");
  app.add_option("--epochs", flags.epochs, "passes over the training images, all workers together")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--batch", flags.batch, "images of one worker's step (of each part of it)")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--width", flags.width, "units of each of the two hidden layers")
      ->check(positive)
      ->capture_default_str();
  app.add_option(
         "--learning-rate", flags.learning_rate,
         "of the first step, falling in a line to zero; a learning_rate that the job sets wins")
      ->check(CLI::Validator(
          [](std::string& text) {
            double value = 0;
            const bool good =
                CLI::detail::lexical_cast(text, value) && std::isfinite(value) && value >= 0;
            return good ? std::string() : text + " is not a learning rate";
          },
          "NUMBER >= 0"))
      ->capture_default_str();
  const CLI::Option* seed_option =
      app.add_option("--seed", seed,
                     "of the first weights and the order of the images; default: the job's")
          ->check(CLI::Validator(
              [](std::string& text) {
                std::uint64_t value = 0;
                const char* const end = text.data() + text.size();
                const auto [at, error] = std::from_chars(text.data(), end, value);
                return error == std::errc() && at == end
                           ? std::string()
                           : text + " is not a seed (a whole number from 0)";
              },
              "NUMBER >= 0"));
  app.add_option("--data", data, "directory with the four files of the data set")
      ->capture_default_str();
  app.add_option("--device", device, "auto (a GPU when there is one), cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--accumulate", flags.accumulate,
                 "parts of a step: as many batches, one gradient, one push")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--target-accuracy", flags.target_accuracy,
                 "end the job when worker 0 measures this on the test images")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--evaluate-every", flags.evaluate_every,
                 "steps of worker 0 between its looks at --target-accuracy")
      ->check(positive)
      ->capture_default_str();

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return Goodbye{0, app.help()};
  } catch (const CLI::ParseError& error) {
    std::string line = error.what();
    std::replace(line.begin(), line.end(), '\n', ' ');
    return Goodbye{2, fmt::format("fashion_mnist: {}; --help lists the flags\n", line)};
  }
  if (seed_option->count() > 0) flags.seed = seed;
  flags.data = data;
  flags.device = device == "cpu"    ? kernels::BackendChoice::kCpu
                 : device == "cuda" ? kernels::BackendChoice::kCuda
                                    : kernels::BackendChoice::kAuto;
  return flags;
}

}  // namespace leeway::examples
