#include "common/half.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>

namespace leeway {
namespace {

std::uint16_t native_half_bits(float f) {
  return std::bit_cast<std::uint16_t>(static_cast<_Float16>(f));
}

}  // namespace

TEST_CASE("every half survives a round trip through float") {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Half h{static_cast<std::uint16_t>(bits)};
    const float f = to_float(h);
    if (std::isnan(f)) {
      CHECK(std::isnan(to_float(to_half(f))));
    } else {
      REQUIRE(f == static_cast<float>(std::bit_cast<_Float16>(h.bits)));
      REQUIRE(to_half(f).bits == h.bits);
    }
  }
}

TEST_CASE("float to half rounds as the compiler's own half does") {
  std::mt19937 random(7);
  for (int i = 0; i < 2'000'000; ++i) {
    const float f = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isnan(f)) continue;
    REQUIRE_MESSAGE(to_half(f).bits == native_half_bits(f), "value " << f);
  }
  for (float f : {65504.f, 65519.99f, 65520.f, 0x1p-24f, 0x1p-25f, 0x1.000002p-25f, 0x1p-14f,
                  0x1.ffcp-15f, -0.f, std::numeric_limits<float>::infinity()})
    CHECK(to_half(f).bits == native_half_bits(f));
}

TEST_CASE("bfloat16 keeps the upper half, rounded to even") {
  CHECK(to_bfloat16(1.0f).bits == 0x3F80);
  CHECK(to_bfloat16(std::bit_cast<float>(0x3F808000u)).bits == 0x3F80);  // a tie goes to even
  CHECK(to_bfloat16(std::bit_cast<float>(0x3F818000u)).bits == 0x3F82);
  CHECK(to_bfloat16(std::bit_cast<float>(0x3F808001u)).bits == 0x3F81);
  CHECK(std::isnan(to_float(to_bfloat16(std::bit_cast<float>(0x7F800001u)))));
  CHECK(std::isinf(to_float(to_bfloat16(std::numeric_limits<float>::max()))));
}

}  // namespace leeway
