// The operations of an MLP on every backend against FP64, with tolerances in units of the dtype.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu_kernels.h"
#include "tests/unit/kernels/executors.h"

namespace leeway::kernels::test {
namespace {

struct Size {
  std::int64_t rows, columns;
};
// Around vectors, warps and blocks; empty; one.
const std::vector<Size> kMatrices = {{0, 5},   {5, 0},    {1, 1},  {3, 7},  {7, 8},
                                     {2, 9},   {5, 15},   {4, 16}, {3, 17}, {31, 32},
                                     {33, 33}, {16, 128}, {9, 257}};

// A half's rounding of `expected`, plus what FP32 lost on the way to it.
double half_tolerance(double expected, double lost) {
  return kHalfEpsilon * std::abs(expected) + kHalfSmallest + lost;
}

TEST_CASE("bias_activation") {
  Random random(20);
  for (Backend* backend : backends()) {
    CAPTURE(backend->name());
    for (const auto [rows, columns] : kMatrices) {
      CAPTURE(rows);
      CAPTURE(columns);
      const std::vector<float> z = random.floats(rows * columns);
      const std::vector<Half> bias = random.halves(columns);
      const Buffer device_z = to_device(*backend, z);
      const Buffer device_bias = to_device(*backend, bias);
      const Buffer out = backend->allocate(z.size() * sizeof(Half));
      for (bool relu : {false, true}) {
        backend->bias_activation(rows, columns, device_z.as<float>(), device_bias.as<Half>(), relu,
                                 out.as<Half>());
        const auto result = to_host<Half>(*backend, out, z.size());
        for (std::size_t i = 0; i < z.size(); ++i) {
          double expected =
              static_cast<double>(z[i]) + to_float(bias[i % static_cast<std::size_t>(columns)]);
          if (relu) expected = std::max(expected, 0.0);
          REQUIRE(std::abs(to_float(result[i]) - expected) <=
                  half_tolerance(expected, 2 * kFloatEpsilon));
        }
      }
    }
  }
}

TEST_CASE("bias_activation lets NaN through") {
  for (Backend* backend : backends()) {
    CAPTURE(backend->name());
    const std::vector<float> z{std::numeric_limits<float>::quiet_NaN(), -1.0f};
    const Buffer device_z = to_device(*backend, z);
    const Buffer bias = backend->allocate(2 * sizeof(Half));
    const Buffer out = backend->allocate(2 * sizeof(Half));
    backend->bias_activation(1, 2, device_z.as<float>(), bias.as<Half>(), true, out.as<Half>());
    const auto result = to_host<Half>(*backend, out, 2);
    CHECK(std::isnan(to_float(result[0])));
    CHECK(to_float(result[1]) == 0.0f);
  }
}

TEST_CASE("relu_backward") {
  Random random(21);
  for (Backend* backend : backends()) {
    CAPTURE(backend->name());
    for (std::int64_t size : kSizes) {
      CAPTURE(size);
      const std::vector<float> da = random.floats(size);
      std::vector<Half> activation = random.halves(size);
      if (size > 1) activation[1] = Half{};
      const Buffer device_da = to_device(*backend, da);
      const Buffer device_activation = to_device(*backend, activation);
      const Buffer out = backend->allocate(da.size() * sizeof(Half));
      backend->relu_backward(size, device_da.as<float>(), device_activation.as<Half>(),
                             out.as<Half>());
      const auto result = to_host<Half>(*backend, out, da.size());
      for (std::size_t i = 0; i < da.size(); ++i)
        REQUIRE(result[i] == (to_float(activation[i]) > 0 ? to_half(da[i]) : Half{}));
    }
  }
}

TEST_CASE("bias_gradient") {
  Random random(22);
  for (Backend* backend : backends()) {
    CAPTURE(backend->name());
    for (const auto [rows, columns] : kMatrices) {
      CAPTURE(rows);
      CAPTURE(columns);
      const std::vector<Half> dz = random.halves(rows * columns);
      const std::vector<float> db = random.floats(columns);
      const Buffer device_dz = to_device(*backend, dz);
      for (float beta : {0.0f, 1.0f, 0.5f}) {
        const Buffer device_db = to_device(*backend, db);
        backend->bias_gradient(rows, columns, device_dz.as<Half>(), beta, device_db.as<float>());
        const auto result = to_host<float>(*backend, device_db, db.size());
        for (std::size_t c = 0; c < db.size(); ++c) {
          double expected = beta * static_cast<double>(db[c]);
          double magnitude = std::abs(expected);
          for (std::int64_t r = 0; r < rows; ++r) {
            const double term = to_float(dz[static_cast<std::size_t>(r * columns) + c]);
            expected += term;
            magnitude += std::abs(term);
          }
          REQUIRE(std::abs(result[c] - expected) <=
                  kFloatEpsilon * static_cast<double>(rows + 2) * magnitude);
        }
      }
    }
  }
}

TEST_CASE("a beta of zero ignores what was there, NaN too") {
  for (Backend* backend : backends()) {
    CAPTURE(backend->name());
    const std::vector<float> garbage(4, std::numeric_limits<float>::quiet_NaN());
    const Buffer db = to_device(*backend, garbage);
    const Buffer c = to_device(*backend, garbage);
    const Buffer zeros = backend->allocate(4 * sizeof(Half));
    backend->bias_gradient(1, 4, zeros.as<Half>(), 0.0f, db.as<float>());
    CHECK(to_host<float>(*backend, db, 4) == std::vector<float>(4, 0.0f));
    backend->gemm(Transpose::kNo, Transpose::kNo, 2, 2, 2, zeros.as<Half>(), zeros.as<Half>(), 0.0f,
                  c.as<float>());
    CHECK(to_host<float>(*backend, c, 4) == std::vector<float>(4, 0.0f));
  }
}

TEST_CASE("bias_gradient strides when there are more columns than threads") {
  Random random(23);
  const std::int64_t columns = 4096 * 32 + 5;
  const std::vector<Half> dz = random.halves(columns);
  for (DeviceBackend* device : device_backends()) {
    const Buffer device_dz = to_device(*device, dz);
    const Buffer db = device->allocate(dz.size() * sizeof(float));
    device->bias_gradient(1, columns, device_dz.as<Half>(), 0.0f, db.as<float>());
    const auto result = to_host<float>(*device, db, dz.size());
    CHECK(result.back() == to_float(dz.back()));
    CHECK(result.front() == to_float(dz.front()));
  }
}

TEST_CASE("gemm in all transpositions") {
  Random random(24);
  struct Sizes {
    std::int64_t m, n, k;
  };
  const std::vector<Sizes> sizes = {{1, 1, 1}, {3, 5, 7}, {16, 8, 32}, {17, 33, 65},
                                    {0, 3, 2}, {4, 0, 2}, {3, 2, 0},   {64, 10, 129}};
  for (Backend* backend : backends()) {
    CAPTURE(backend->name());
    for (const auto [m, n, k] : sizes) {
      CAPTURE(m);
      CAPTURE(n);
      CAPTURE(k);
      const std::vector<Half> a = random.halves(m * k);
      const std::vector<Half> b = random.halves(k * n);
      const std::vector<float> c = random.floats(m * n);
      const Buffer device_a = to_device(*backend, a);
      const Buffer device_b = to_device(*backend, b);
      for (int variant = 0; variant < 8; ++variant) {
        CAPTURE(variant);
        const bool ta = (variant & 1) != 0;
        const bool tb = (variant & 2) != 0;
        const float beta = (variant & 4) != 0 ? 0.5f : 0.0f;
        const Buffer device_c = to_device(*backend, c);
        backend->gemm(Transpose{ta}, Transpose{tb}, m, n, k, device_a.as<Half>(),
                      device_b.as<Half>(), beta, device_c.as<float>());
        const auto result = to_host<float>(*backend, device_c, c.size());
        for (std::int64_t i = 0; i < m; ++i)
          for (std::int64_t j = 0; j < n; ++j) {
            const auto at = static_cast<std::size_t>(i * n + j);
            double expected = beta * static_cast<double>(c[at]);
            double magnitude = std::abs(expected);
            for (std::int64_t l = 0; l < k; ++l) {
              const double term = static_cast<double>(to_float(
                                      a[static_cast<std::size_t>(ta ? l * m + i : i * k + l)])) *
                                  to_float(b[static_cast<std::size_t>(tb ? j * k + l : l * n + j)]);
              expected += term;
              magnitude += std::abs(term);
            }
            REQUIRE(std::abs(result[at] - expected) <=
                    kFloatEpsilon * static_cast<double>(k + 2) * magnitude);
          }
      }
    }
  }
}

struct SoftmaxResult {
  double loss = 0;
  int correct = 0;
  std::vector<double> gradients;
};

SoftmaxResult softmax_reference(const std::vector<Half>& logits,
                                const std::vector<std::int32_t>& labels, std::int64_t classes,
                                double scale) {
  SoftmaxResult result;
  for (std::size_t r = 0; r < labels.size(); ++r) {
    const Half* row = logits.data() + r * static_cast<std::size_t>(classes);
    std::int64_t best = 0;
    for (std::int64_t c = 1; c < classes; ++c)
      if (to_float(row[c]) > to_float(row[best])) best = c;
    const double largest = to_float(row[best]);
    double sum = 0;
    for (std::int64_t c = 0; c < classes; ++c) sum += std::exp(to_float(row[c]) - largest);
    result.loss += std::log(sum) + largest - to_float(row[labels[r]]);
    result.correct += best == labels[r] ? 1 : 0;
    for (std::int64_t c = 0; c < classes; ++c)
      result.gradients.push_back(
          (std::exp(to_float(row[c]) - largest) / sum - (c == labels[r] ? 1 : 0)) * scale);
  }
  return result;
}

TEST_CASE("softmax_cross_entropy") {
  Random random(25);
  const std::vector<Size> sizes = {{0, 10}, {1, 1},   {1, 2}, {3, 10},   {4, 31},
                                   {5, 32}, {33, 33}, {6, 5}, {257, 10}, {2, 1000}};
  constexpr float kScale = 1024.0f;
  for (Backend* backend : backends()) {
    CAPTURE(backend->name());
    for (const auto [rows, classes] : sizes) {
      CAPTURE(rows);
      CAPTURE(classes);
      const std::vector<Half> logits = random.halves(rows * classes, -20.0f, 20.0f);
      std::vector<std::int32_t> labels(static_cast<std::size_t>(rows));
      for (auto& label : labels) label = random.below(static_cast<int>(classes));
      const SoftmaxResult expected = softmax_reference(logits, labels, classes, kScale);
      const Buffer device_logits = to_device(*backend, logits);
      const Buffer device_labels = to_device(*backend, labels);
      const Buffer loss = to_device(*backend, std::vector<float>{100.0f});
      const Buffer correct = to_device(*backend, std::vector<std::int32_t>{7});
      const Buffer gradients = backend->allocate(logits.size() * sizeof(Half));
      backend->softmax_cross_entropy(rows, classes, device_logits.as<Half>(),
                                     device_labels.as<std::int32_t>(), kScale, loss.as<float>(),
                                     correct.as<std::int32_t>(), gradients.as<Half>());
      const double sum = to_host<float>(*backend, loss, 1)[0];
      CHECK(std::abs(sum - 100.0 - expected.loss) <=
            kFloatEpsilon * static_cast<double>(rows + 8) * (100.0 + expected.loss));
      CHECK(to_host<std::int32_t>(*backend, correct, 1)[0] == 7 + expected.correct);
      const auto result = to_host<Half>(*backend, gradients, logits.size());
      for (std::size_t i = 0; i < result.size(); ++i)
        REQUIRE(std::abs(to_float(result[i]) - expected.gradients[i]) <=
                half_tolerance(expected.gradients[i],
                               8 * kFloatEpsilon * kScale * std::sqrt(double(classes))));
      // Evaluation: no gradient, the same sums.
      backend->fill_zero(loss.as<float>(), sizeof(float));
      backend->softmax_cross_entropy(rows, classes, device_logits.as<Half>(),
                                     device_labels.as<std::int32_t>(), kScale, loss.as<float>(),
                                     correct.as<std::int32_t>(), nullptr);
      CHECK(to_host<std::int32_t>(*backend, correct, 1)[0] == 7 + 2 * expected.correct);
    }
  }
}

TEST_CASE("softmax_cross_entropy of NaN, of equal logits and of a label that is none") {
  for (Backend* backend : backends()) {
    CAPTURE(backend->name());
    const auto run = [&](const std::vector<float>& values, std::int32_t label) {
      std::vector<Half> logits;
      for (float value : values) logits.push_back(to_half(value));
      const Buffer device_logits = to_device(*backend, logits);
      const Buffer labels = to_device(*backend, std::vector<std::int32_t>{label});
      const Buffer loss = backend->allocate(sizeof(float));
      const Buffer correct = backend->allocate(sizeof(std::int32_t));
      const Buffer gradients = backend->allocate(logits.size() * sizeof(Half));
      backend->softmax_cross_entropy(1, static_cast<std::int64_t>(values.size()),
                                     device_logits.as<Half>(), labels.as<std::int32_t>(), 1.0f,
                                     loss.as<float>(), correct.as<std::int32_t>(),
                                     gradients.as<Half>());
      return std::pair(to_host<float>(*backend, loss, 1)[0],
                       to_host<std::int32_t>(*backend, correct, 1)[0]);
    };
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float infinity = std::numeric_limits<float>::infinity();
    CHECK(std::isnan(run({1.0f, nan, 2.0f}, 2).first));
    CHECK(run({1.0f, nan, 2.0f}, 2).second == 0);
    CHECK(std::isnan(run({1.0f, infinity}, 0).first));
    CHECK(run({-infinity, 0.0f}, 1).first == 0.0f);
    CHECK(run({0.5f, 0.5f, 0.5f, 0.5f}, 0).first == doctest::Approx(std::log(4.0)));
    CHECK(run({0.5f, 0.5f}, 0).second == 1);  // of equals, the first
    CHECK(run({0.5f, 0.5f}, 1).second == 0);
    CHECK(std::isnan(run({0.0f, 1.0f}, 2).first));
    CHECK(std::isnan(run({0.0f, 1.0f}, -1).first));
    CHECK(run({0.0f, 1.0f}, -1).second == 0);
  }
}

TEST_CASE("every vector width gives the scalar versions' bits") {
  Random random(26);
  std::vector<Size> matrices = kMatrices;
  matrices.push_back({1, 5000});
  for (const auto [rows, columns] : matrices) {
    if (columns == 0) continue;
    CAPTURE(rows);
    CAPTURE(columns);
    const std::vector<float> z = random.floats(rows * columns);
    const std::vector<Half> halves = random.halves(rows * columns, -9.0f, 9.0f);
    const std::vector<Half> bias = random.halves(columns);
    std::vector<std::int32_t> labels(static_cast<std::size_t>(rows));
    for (auto& label : labels) label = random.below(static_cast<int>(columns));
    const auto results = [&](const CpuKernels& table) {
      std::vector<Half> out(3 * z.size());
      std::vector<float> db(static_cast<std::size_t>(columns), 0.25f);
      std::vector<float> row(static_cast<std::size_t>(columns) + 16);
      float loss = 0;
      std::int32_t correct = 0;
      table.bias_activation(rows, columns, z.data(), bias.data(), true, out.data());
      table.relu_backward(rows * columns, z.data(), halves.data(), out.data() + z.size());
      table.bias_gradient(rows, columns, halves.data(), 0.5f, db.data());
      table.softmax_cross_entropy(rows, columns, halves.data(), labels.data(), 512.0f, &loss,
                                  &correct, out.data() + 2 * z.size(), row.data());
      // The last row's exponentials: rounding would hide their last bits in loss and gradient.
      if (rows > 0) db.insert(db.end(), row.begin(), row.begin() + columns);
      db.push_back(loss);
      db.push_back(static_cast<float>(correct));
      return std::pair(out, db);
    };
    const auto expected = results(scalar_kernels());
    for (const CpuKernels* table : available_cpu_kernels()) {
      CAPTURE(table->name);
      const auto got = results(*table);
      CHECK(got.first == expected.first);
      CHECK(got.second == expected.second);
    }
  }
}

}  // namespace
}  // namespace leeway::kernels::test
