#include "kernels/sum_of_squares.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "kernels/cpu_kernels.h"
#include "tests/unit/kernels/executors.h"

namespace leeway::kernels::test {

TEST_CASE("the sum of squares is right and the same in every version, for every size") {
  for (std::int64_t size : kSizes) {
    CAPTURE(size);
    const std::vector<float> values = Random(30).floats(size, -3.0f, 5.0f);
    double expected = 0;
    for (const float x : values) expected += static_cast<double>(x) * x;
    const double reference = scalar_kernels().sum_of_squares(values.data(), values.size());
    CHECK(reference == doctest::Approx(expected).epsilon(1e-6));
    for (const CpuKernels* table : available_cpu_kernels())
      CHECK(table->sum_of_squares(values.data(), values.size()) == reference);
  }
}

TEST_CASE("every backend's block sums add up to the host's bits") {
  for (std::int64_t size : kSizes) {
    CAPTURE(size);
    const std::vector<float> values = Random(31).floats(size, -3.0f, 5.0f);
    const std::size_t blocks = (values.size() + kNormBlock - 1) / kNormBlock;
    for (Backend* backend : backends()) {
      CAPTURE(backend->name());
      const Buffer in = to_device(*backend, values);
      const Buffer out = to_device(*backend, std::vector<double>(blocks, -1.0));
      backend->block_squares(size, in.as<float>(), out.as<double>());
      double sum = 0;
      for (const double block : to_host<double>(*backend, out, blocks)) sum = sum + block;
      CHECK(sum == sum_of_squares(values));
    }
  }
}

TEST_CASE("a sum of squares with something that is no number is none") {
  for (const float odd :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    for (const std::size_t at : {0, 8, 1500}) {
      std::vector<float> values(1501, 1.0f);
      values[at] = odd;
      for (const CpuKernels* table : available_cpu_kernels())
        CHECK_FALSE(std::isfinite(table->sum_of_squares(values.data(), values.size())));
    }
}

}  // namespace leeway::kernels::test
