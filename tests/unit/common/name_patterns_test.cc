#include "common/name_patterns.h"

#include <doctest/doctest.h>

#include <string>

#include "common/job_settings.h"

namespace leeway {

TEST_CASE("tensor names match patterns with stars, whole names only") {
  CHECK(matches_any("*.bias,*norm*", "layer.0.bias"));
  CHECK(matches_any("*.bias, *norm*", "decoder.norm2.weight"));
  CHECK(matches_any("*norm*", "norm"));
  CHECK(matches_any("a*b*c", "aXbbYc"));
  CHECK(matches_any("exact", "exact"));
  CHECK(matches_any("*", "anything"));
  CHECK_FALSE(matches_any("*.bias,*norm*", "layer.0.weight"));
  CHECK_FALSE(matches_any("*.bias", "layer.bias.0"));
  CHECK_FALSE(matches_any("exact", "exactly"));
  CHECK_FALSE(matches_any("a*b*c", "acb"));
  CHECK_FALSE(matches_any("", "x"));
  CHECK_FALSE(matches_any(" , ,", ""));
  const std::string long_name(4000, 'a');
  CHECK_FALSE(matches_any("*a*a*a*a*a*a*a*a*b", long_name));  // returns at all
}

TEST_CASE("a tensor decays unless its name is in weight_decay_skip, and only when there is decay") {
  JobSettings settings;
  settings.weight_decay_skip = "*.bias";
  CHECK_FALSE(settings.decays("a.weight"));
  settings.weight_decay = 0.1;
  CHECK(settings.decays("a.weight"));
  CHECK_FALSE(settings.decays("a.bias"));
}

}  // namespace leeway
