#include "kernels/weighted_sum.h"

#include <doctest/doctest.h>

#include "tests/unit/kernels/executors.h"

namespace leeway::kernels::test {

TEST_CASE("a weighted sum rounds each product and their sum, on every backend, also in place") {
  for (const std::int64_t size : kSizes) {
    CAPTURE(size);
    const std::vector<float> x = Random(70).floats(size, -8.0f, 8.0f), y = Random(71).floats(size);
    std::vector<float> expected(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const volatile float ax = 0.1f * x[i], by = 3.3f * y[i];  // nothing to fuse
      expected[i] = ax + by;
    }
    std::vector<float> sums(x.size());
    weighted_sum(0.1f, x, 3.3f, y, sums);
    CHECK(sums == expected);
    for (Backend* backend : backends()) {
      CAPTURE(backend->name());
      const Buffer at_x = to_device(*backend, x), at_y = to_device(*backend, y);
      const Buffer out = backend->allocate(sums.size() * sizeof(float));
      for (float* to : {out.as<float>(), at_y.as<float>()}) {
        backend->weighted_sum(size, 0.1f, at_x.as<float>(), 3.3f, at_y.as<float>(), to);
        CHECK(to_host<float>(*backend, to == at_y.as<float>() ? at_y : out, sums.size()) ==
              expected);
      }
    }
  }
}

}  // namespace leeway::kernels::test
