#include "common/inject.h"

#include <doctest/doctest.h>

namespace leeway {

TEST_CASE("injections parse into what they mean") {
  const auto all = parse_injections(
      "slow:worker=2,factor=5;kill:server=1,at_step=300;pause:worker=0,at_step=1,seconds=2.5");
  REQUIRE(all);
  REQUIRE(all->size() == 3);
  CHECK((*all)[0].kind == Injection::Kind::kSlow);
  CHECK((*all)[0].factor == 5);
  CHECK((*all)[1].server);
  CHECK((*all)[1].at_step == 300);
  CHECK((*all)[2].seconds == 2.5);
  CHECK(parse_injections("")->empty());
}

TEST_CASE("nonsense is refused with the text that is wrong") {
  for (const char* text : {"slow", "slow:", "slow:worker=1", "slow:worker=1,factor=0.5",
                           "slow:server=1,factor=2", "kill:worker=1", "kill:worker=x,at_step=1",
                           "kill:worker=1,at_step=1,at_step=2", "explode:worker=1,at_step=1",
                           "kill:worker=1,at_step=1,factor=2", "kill:worker=-1,at_step=1", ";"}) {
    const auto injections = parse_injections(text);
    REQUIRE_MESSAGE(!injections, text);
    CHECK(injections.error().message.starts_with("--inject "));
  }
}

}  // namespace leeway
