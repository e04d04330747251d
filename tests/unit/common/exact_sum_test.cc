#include "common/exact_sum.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

namespace leeway {

TEST_CASE("a sum has the same bits in every order and every grouping") {
  constexpr std::uint32_t kSeed = 7;
  INFO("seed " << kSeed);
  std::mt19937 random(kSeed);
  std::vector<double> terms;
  for (int i = 0; i < 2000; ++i) {
    // From the square of the smallest FP32 number to that of the largest.
    const double mantissa = std::uniform_real_distribution<double>(1, 2)(random);
    terms.push_back(std::ldexp(mantissa, std::uniform_int_distribution<int>(-240, 255)(random)));
  }
  ExactSum in_order;
  for (const double term : terms) in_order.add(term);
  for (int n = 0; n < 20; ++n) {
    std::ranges::shuffle(terms, random);
    std::vector<ExactSum> parts(1 + random() % 9);
    for (const double term : terms) parts[random() % parts.size()].add(term);
    ExactSum sum;
    for (const ExactSum& part : parts) sum.add(part);
    REQUIRE(sum == in_order);
  }
}

TEST_CASE("nothing is rounded before the end") {
  ExactSum sum;
  const double smallest = 0x1p-298, large = 0x1p255;
  sum.add(large);
  sum.add(smallest);
  ExactSum without;
  without.add(large);
  CHECK(sum != without);
  CHECK(sum.value() == large);
  ExactSum alone;
  alone.add(smallest);
  CHECK(alone.value() == smallest);
  alone.add(smallest / 2);  // less than a unit
  CHECK(alone.value() == smallest);
  ExactSum tenths;
  for (int i = 0; i < 1000; ++i) tenths.add(0.1);
  CHECK(tenths.value() == doctest::Approx(1000 * 0.1).epsilon(1e-15));
  CHECK(ExactSum().value() == 0);
}

TEST_CASE("carries run through every word, and what is beyond saturates") {
  ExactSum::Words words;
  words.fill(UINT64_MAX);
  words[9] = 7;
  ExactSum sum(words);
  ExactSum unit;
  unit.add(0x1p-298);
  sum.add(unit);
  ExactSum::Words expected{};
  expected[9] = 8;
  CHECK(sum.words() == expected);
  ExactSum by_term(words);
  by_term.add(0x1p-298);
  CHECK(by_term == sum);
  words[9] = UINT64_MAX - 1;
  ExactSum full(words);
  full.add(full);
  CHECK(std::isinf(full.value()));
  full.add(1);
  CHECK(std::isinf(full.value()));
  for (const double bad : {-1.0, std::numeric_limits<double>::infinity(), std::nan(""), 1e300}) {
    ExactSum saturated;
    saturated.add(bad);
    CHECK(std::isinf(saturated.value()));
    ExactSum other;
    other.add(2);
    other.add(saturated);
    CHECK(std::isinf(other.value()));
  }
}

}  // namespace leeway
