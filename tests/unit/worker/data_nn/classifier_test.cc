#include "worker/nn/classifier.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "tests/unit/worker/data_nn/local_parameters.h"
#include "tests/unit/worker/data_nn/separate_memory.h"
#include "worker/nn/linear.h"
#include "worker/random.h"

namespace leeway::worker::nn {
namespace {

constexpr double kHalfEpsilon = 0x1p-11;  // FP16 rounds to within this, relatively

struct Samples {
  std::vector<Half> features;
  std::vector<std::int32_t> labels;
  std::int64_t rows() const { return static_cast<std::int64_t>(labels.size()); }
};

Samples random_samples(std::size_t rows, std::size_t features, std::uint64_t classes,
                       std::uint64_t seed) {
  Random random(seed);
  Samples samples;
  for (std::size_t i = 0; i < rows * features; ++i)
    samples.features.push_back(to_half(static_cast<float>(random.normal())));
  for (std::size_t i = 0; i < rows; ++i)
    samples.labels.push_back(static_cast<std::int32_t>(random.below(classes)));
  return samples;
}

// Weights of another that are kept in a backend's memory, as a session on a device keeps them.
class KeptOnDevice final : public Parameters {
 public:
  KeptOnDevice(kernels::Backend& backend, const LocalParameters& source, std::size_t count)
      : dtype_(source.weights_dtype()) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto weights = source.weights(i);
      kept_.push_back(backend.allocate(weights.size()));
      backend.upload(kept_.back().as<std::byte>(), weights.data(), weights.size());
    }
  }
  ParameterIndex declare(std::string, Shape, std::span<const float>) override { return 0; }
  std::span<const std::byte> weights(ParameterIndex) const override {
    FAIL("the host has none");
    return {};
  }
  const std::byte* device_weights(ParameterIndex parameter) const override {
    return kept_[parameter].as<std::byte>();
  }
  Dtype weights_dtype() const noexcept override { return dtype_; }

 private:
  const Dtype dtype_;
  std::vector<kernels::Buffer> kept_;
};

// A model with its parameters, and every gradient that it gave last, by parameter.
struct Rig {
  explicit Rig(std::vector<std::int64_t> sizes, std::unique_ptr<kernels::Backend> on,
               const JobSettings& settings = {})
      : backend(std::move(on)),
        parameters(settings),
        model(*backend, multilayer_perceptron(*backend, sizes)) {
    model.declare(parameters, 77);
    Random random(5);
    for (LocalTensor& tensor : parameters.tensors())
      if (tensor.name.ends_with(".bias"))
        for (float& value : tensor.master) value = static_cast<float>(0.1 * random.normal());
    parameters.publish();
    model.load(parameters);
  }

  Score train(const Samples& samples, const TrainOptions& options) {
    order.clear();
    gradients.assign(parameters.tensors().size(), {});
    return model.train(samples.rows(), samples.features.data(), samples.labels.data(), options,
                       [this](ParameterIndex parameter, std::span<const float> gradient) {
                         order.push_back(parameters.tensors()[parameter].name);
                         auto& taken = gradients[parameter];
                         taken.resize(gradient.size());
                         if (gradients_on_device)
                           backend->download(taken.data(), gradient.data(), gradient.size_bytes());
                         else
                           std::ranges::copy(gradient, taken.begin());
                       });
  }

  std::unique_ptr<kernels::Backend> backend;
  LocalParameters parameters;
  Classifier model;
  bool gradients_on_device = false;
  std::vector<std::string> order;
  std::vector<std::vector<float>> gradients;
};

// The same perceptron in FP64, written for reading: weights[2i], weights[2i + 1] are the weight and
// the bias of layer i.
double reference_loss(const std::vector<std::vector<double>>& weights,
                      const std::vector<std::int64_t>& sizes, const Samples& samples) {
  double loss = 0;
  for (std::size_t row = 0; row < samples.labels.size(); ++row) {
    std::vector<double> a;
    const auto inputs = static_cast<std::size_t>(sizes[0]);
    for (std::size_t i = 0; i < inputs; ++i)
      a.push_back(to_float(samples.features[row * inputs + i]));
    for (std::size_t layer = 0; layer + 1 < sizes.size(); ++layer) {
      std::vector<double> z = weights[2 * layer + 1];
      for (std::size_t i = 0; i < a.size(); ++i)
        for (std::size_t j = 0; j < z.size(); ++j)
          z[j] += a[i] * weights[2 * layer][i * z.size() + j];
      if (layer + 2 < sizes.size())
        for (double& value : z) value = std::max(value, 0.0);
      a = std::move(z);
    }
    double sum = 0;
    for (double logit : a) sum += std::exp(logit);
    loss += std::log(sum) - a[static_cast<std::size_t>(samples.labels[row])];
  }
  return loss / static_cast<double>(samples.labels.size());
}

std::vector<std::vector<double>> published_weights(const LocalParameters& parameters,
                                                   std::size_t count) {
  std::vector<std::vector<double>> weights;
  for (std::size_t i = 0; i < count; ++i) {
    const auto bytes = parameters.weights(i);
    const auto* half = reinterpret_cast<const Half*>(bytes.data());
    weights.emplace_back();
    for (std::size_t e = 0; e < bytes.size() / sizeof(Half); ++e)
      weights.back().push_back(to_float(half[e]));
  }
  return weights;
}

// Largest difference over largest element.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double difference = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference = std::max(difference, std::abs(double{a[i]} - b[i]));
    largest = std::max(largest, std::abs(double{b[i]}));
  }
  return difference / largest;
}

}  // namespace

TEST_CASE("gradients are the slopes of the loss, taken numerically in FP64") {
  const std::vector<std::int64_t> sizes{7, 9, 6, 4};
  Rig rig(sizes, kernels::open_cpu_backend());
  const Samples samples = random_samples(12, 7, 4, 3);
  const double scale = 256;
  const Score score = rig.train(samples, {.loss_scale = scale});

  auto weights = published_weights(rig.parameters, 6);
  CHECK(score.loss ==
        doctest::Approx(reference_loss(weights, sizes, samples)).epsilon(4 * kHalfEpsilon));
  const double step = 1e-5;
  for (std::size_t p = 0; p < weights.size(); ++p) {
    std::vector<float> slopes;
    for (double& weight : weights[p]) {
      const double kept = weight;
      weight = kept + step;
      const double above = reference_loss(weights, sizes, samples);
      weight = kept - step;
      const double below = reference_loss(weights, sizes, samples);
      weight = kept;
      slopes.push_back(static_cast<float>(scale * (above - below) / (2 * step)));
    }
    CAPTURE(rig.parameters.tensors()[p].name);
    // A few roundings to FP16 lie between a weight and the loss.
    CHECK(distance(rig.gradients[p], slopes) < 8 * kHalfEpsilon);
  }
}

TEST_CASE("gradients come once each, the last layer's first") {
  Rig rig({7, 9, 6, 4}, kernels::open_cpu_backend());
  for (const std::uint32_t parts : {1u, 3u}) {
    rig.train(random_samples(12, 7, 4, 3), {.loss_scale = 8, .parts = parts});
    CHECK(rig.order == std::vector<std::string>{"output.weight", "output.bias", "hidden2.weight",
                                                "hidden2.bias", "hidden1.weight", "hidden1.bias"});
  }
}

TEST_CASE("a step in parts has the gradient of the step in one") {
  Rig rig({20, 16, 4}, kernels::open_cpu_backend());
  const Samples samples = random_samples(64, 20, 4, 8);
  const Score whole = rig.train(samples, {.loss_scale = 1024});
  const auto gradients = rig.gradients;
  for (const std::uint32_t parts : {2u, 4u, 64u}) {
    const Score score = rig.train(samples, {.loss_scale = 1024, .parts = parts});
    CHECK(score.loss == doctest::Approx(whole.loss).epsilon(1e-5));
    CHECK(score.accuracy == whole.accuracy);
    for (std::size_t p = 0; p < gradients.size(); ++p) {
      CAPTURE(p);
      CHECK(distance(rig.gradients[p], gradients[p]) < 1e-5);
    }
  }
  // And nothing of the parts stays for the next step.
  rig.train(samples, {.loss_scale = 1024});
  CHECK(rig.gradients == gradients);
}

TEST_CASE("the loss scale and a factor multiply gradients and leave the loss") {
  Rig rig({20, 16, 4}, kernels::open_cpu_backend());
  const Samples samples = random_samples(16, 20, 4, 8);
  const Score one = rig.train(samples, {.loss_scale = 64});
  auto expected = rig.gradients;
  for (auto& gradient : expected)
    for (float& value : gradient) value *= 16;
  const Score sixteen = rig.train(samples, {.loss_scale = 1024});
  CHECK(one.loss == sixteen.loss);
  for (std::size_t p = 0; p < expected.size(); ++p)
    CHECK(distance(rig.gradients[p], expected[p]) < 2 * kHalfEpsilon);

  const Score slower = rig.train(samples, {.loss_scale = 2048, .gradient_factor = 0.5});
  CHECK(one.loss == slower.loss);
  for (std::size_t p = 0; p < expected.size(); ++p)
    CHECK(distance(rig.gradients[p], expected[p]) < 2 * kHalfEpsilon);
  CHECK(linear_decay(0, 4) == 1.0);
  CHECK(linear_decay(3, 4) == 0.25);
  CHECK(linear_decay(9, 4) == 0.0);

  rig.train(samples, {.loss_scale = 0x1p30});  // beyond FP16: seen in the gradients, no crash
  bool finite = true;
  for (float value : rig.gradients[0]) finite = finite && std::isfinite(value);
  CHECK_FALSE(finite);
}

TEST_CASE("weights that travel as bf16 or f32 are computed on as FP16") {
  const Samples samples = random_samples(16, 20, 4, 8);
  const auto gradients_with = [&](const char* dtype) {
    JobSettings settings;
    settings.pull_dtype.value = dtype;
    Rig rig({20, 16, 4}, kernels::open_cpu_backend(), settings);
    rig.train(samples, {.loss_scale = 64});
    return rig.gradients;
  };
  const auto half = gradients_with("f16");
  CHECK(gradients_with("f32") == half);  // rounded once, here instead of at the server
  const auto bfloat = gradients_with("bf16");
  CHECK(bfloat != half);
  for (std::size_t p = 0; p < half.size(); ++p) CHECK(distance(bfloat[p], half[p]) < 0.1);
}

TEST_CASE("a device with memory of its own computes the same") {
  const Samples samples = random_samples(24, 20, 4, 8);
  for (const char* dtype : {"f16", "bf16", "f32"}) {
    JobSettings settings;
    settings.pull_dtype.value = dtype;
    Rig host({20, 16, 12, 4}, kernels::open_cpu_backend(), settings);
    Rig device({20, 16, 12, 4}, std::make_unique<SeparateMemory>(), settings);
    for (const std::uint32_t parts : {1u, 2u}) {
      const TrainOptions options{.loss_scale = 512, .parts = parts};
      const Score score = host.train(samples, options);
      CHECK(device.train(samples, options).loss == score.loss);
      CHECK(device.gradients == host.gradients);
    }
  }
}

TEST_CASE("weights that are kept on the device are used there, and gradients given away there") {
  const Samples samples = random_samples(24, 20, 4, 8);
  for (const char* dtype : {"f16", "bf16", "f32"}) {
    JobSettings settings;
    settings.pull_dtype.value = dtype;
    Rig host({20, 16, 12, 4}, kernels::open_cpu_backend(), settings);
    Rig device({20, 16, 12, 4}, std::make_unique<SeparateMemory>(), settings);
    const KeptOnDevice kept(*device.backend, device.parameters, device.parameters.tensors().size());
    device.gradients_on_device = true;
    device.model.load(kept);
    const TrainOptions options{.loss_scale = 512};
    const Score score = host.train(samples, options);
    CHECK(device.train(samples, options).loss == score.loss);
    CHECK(device.gradients == host.gradients);
  }
}

TEST_CASE("N6: layers with no units, one unit and three") {
  // A layer without units passes nothing on: the classes are guessed from the biases alone.
  Rig none({5, 0, 3}, kernels::open_cpu_backend());
  const Samples samples = random_samples(8, 5, 3, 2);
  const Score score = none.train(samples, {.loss_scale = 8});
  CHECK(std::isfinite(score.loss));
  CHECK(none.order == std::vector<std::string>{"output.bias"});  // the only one with elements

  for (const std::int64_t units : {1, 3}) {
    Rig rig({1, units, 1}, kernels::open_cpu_backend());
    const Score certain = rig.train(random_samples(4, 1, 1, 2), {.loss_scale = 8});
    CHECK(certain.loss == 0);  // of one class
    CHECK(certain.accuracy == 1);
    CHECK(rig.order.size() == 4);
  }
}

TEST_CASE("a classifier is measured on a whole data set, its incomplete last piece included") {
  class RandomSet : public data::Dataset {
   public:
    std::uint64_t samples() const noexcept override { return drawn_.labels.size(); }
    std::uint64_t features() const noexcept override { return 6; }
    std::uint32_t classes() const noexcept override { return 3; }
    Status read(std::span<const std::uint64_t> indices, Half* features,
                std::int32_t* labels) const override {
      for (std::uint64_t index : indices) {
        features = std::copy_n(drawn_.features.begin() + static_cast<long>(6 * index), 6, features);
        *labels++ = drawn_.labels[index];
      }
      return {};
    }
    const Samples& drawn() const { return drawn_; }

   private:
    Samples drawn_ = random_samples(2345, 6, 3, 1);
  };
  const RandomSet set;
  Rig rig({6, 8, 3}, kernels::open_cpu_backend());
  const Score expected = rig.train(set.drawn(), {});  // the same forward pass, all rows at once
  const Score score = rig.model.evaluate(set);
  CHECK(score.loss == doctest::Approx(expected.loss).epsilon(1e-5));
  CHECK(score.accuracy == doctest::Approx(expected.accuracy).epsilon(1e-12));
}

TEST_CASE("models that do not fit together are refused") {
  const auto backend = kernels::open_cpu_backend();
  Sequential model;
  model.add(std::make_unique<Linear>(*backend, "a", 4, 5, Activation::kRelu));
  CHECK_THROWS_AS(model.add(std::make_unique<Linear>(*backend, "b", 6, 5, Activation::kNone)),
                  ConfigError);
  CHECK_THROWS_AS(multilayer_perceptron(*backend, {4}), ConfigError);
  CHECK_THROWS_AS(Linear(*backend, "huge", INT64_MAX, 3, Activation::kNone), ConfigError);
  CHECK_THROWS_AS(Linear(*backend, "negative", -1, 3, Activation::kNone), ConfigError);
}

}  // namespace leeway::worker::nn
