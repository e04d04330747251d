#include "worker/nn/initialize.h"

#include <algorithm>
#include <cmath>

#include "common/result.h"
#include "worker/random.h"

namespace leeway::worker::nn {

std::vector<float> he_normal(std::uint64_t seed, std::string_view name, const Shape& shape,
                             std::int64_t fan_in) {
  const auto elements = element_count(shape);
  LEEWAY_CHECK(elements.has_value());
  std::vector<float> values(*elements);
  Random random(derive_seed(seed, name));
  const double deviation = std::sqrt(2.0 / static_cast<double>(std::max<std::int64_t>(fan_in, 1)));
  std::ranges::generate(values, [&] { return static_cast<float>(deviation * random.normal()); });
  return values;
}

}  // namespace leeway::worker::nn
