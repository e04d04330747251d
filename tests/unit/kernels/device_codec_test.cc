// The backends' encoders beside those of the host: the same bytes, whatever the lengths, the
// addresses and the number of arrays in a call.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "kernels/codec.h"
#include "tests/unit/kernels/executors.h"

namespace leeway::kernels::test {
namespace {

constexpr Codec kOfElements[] = {Codec::kF16, Codec::kBf16, Codec::kFp8E4m3, Codec::kFp8E5m2,
                                 Codec::kInt8};
constexpr std::byte kUntouched{0x5A};
constexpr float kNotMine = std::numeric_limits<float>::quiet_NaN();
constexpr std::size_t kGuard = 64;

// Numbers of many magnitudes, some zero, some equal.
std::vector<float> gradients(std::size_t count, std::uint32_t seed) {
  Random random(seed);
  std::vector<float> values = random.floats(static_cast<std::int64_t>(count));
  for (float& value : values) {
    const int kind = random.below(8);
    if (kind == 0)
      value = 0;
    else if (kind == 1)
      value = static_cast<float>(random.below(5) - 2);
    else
      value = std::ldexp(value, random.below(30) - 20);
  }
  return values;
}

// One array and its payload, in the middle of memory that nobody may touch.
struct Case {
  std::size_t count = 0;
  std::size_t before = 0, after = 0;  // elements of the payload around it
  std::size_t in_offset = 0;          // of the source, in elements
};

// Those cases in one call on a backend: their payloads one after the other, with guards.
class Encoded {
 public:
  Encoded(const GradientCodec& codec, const std::vector<Case>& cases)
      : codec_(codec), cases_(cases) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const Case& c = cases[i];
      sources_.push_back(source_.size() + c.in_offset);
      const auto values = gradients(c.count, static_cast<std::uint32_t>(7 + i));
      source_.resize(source_.size() + c.in_offset, kNotMine);
      source_.insert(source_.end(), values.begin(), values.end());
      source_.resize((source_.size() + 3) / 4 * 4, kNotMine);
      payloads_.push_back(bytes_ + kGuard);
      bytes_ += kGuard + (codec.bytes(all(c)) + kGuard - 1) / kGuard * kGuard;
    }
    bytes_ += kGuard;
  }

  static std::size_t all(const Case& c) { return c.before + c.count + c.after; }
  std::vector<float>& source() { return source_; }
  std::size_t source_of(std::size_t i) const { return sources_[i]; }

  std::vector<std::byte> on_host(float scale, bool& finite) const {
    std::vector<std::byte> bytes(bytes_, kUntouched);
    finite = true;
    for (std::size_t i = 0; i < cases_.size(); ++i)
      finite &= encode(codec_, {source_.data() + sources_[i], cases_[i].count}, scale,
                       bytes.data() + payloads_[i], all(cases_[i]), cases_[i].before);
    return bytes;
  }
  std::vector<std::byte> on(Backend& backend, float scale, bool& finite) const {
    const Buffer in = to_device(backend, source_);
    const Buffer out = to_device(backend, std::vector<std::byte>(bytes_, kUntouched));
    const Buffer flag = backend.allocate(sizeof(std::int32_t));
    std::vector<EncodePiece> pieces;
    for (std::size_t i = 0; i < cases_.size(); ++i)
      pieces.push_back({in.as<float>(sources_[i]), cases_[i].count, out.as<std::byte>(payloads_[i]),
                        all(cases_[i]), cases_[i].before});
    backend.encode(codec_, pieces, scale, flag.as<std::int32_t>());
    finite = to_host<std::int32_t>(backend, flag, 1)[0] == 0;
    return to_host<std::byte>(backend, out, bytes_);
  }

 private:
  const GradientCodec codec_;
  const std::vector<Case> cases_;
  std::vector<float> source_;
  std::vector<std::size_t> sources_, payloads_;
  std::size_t bytes_ = 0;
};

// Where two differ first; npos where they do not.
std::size_t first_difference(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (a[i] != b[i]) return i;
  return std::string::npos;
}

void check_same(const Encoded& encoded, float scale) {
  bool finite = false;
  const auto expected = encoded.on_host(scale, finite);
  REQUIRE(finite);
  for (Backend* backend : backends()) {
    CAPTURE(backend->name());
    finite = false;
    CHECK(first_difference(encoded.on(*backend, scale, finite), expected) == std::string::npos);
    CHECK(finite);
  }
}

// Parts of these lengths, encoded twice in a row with the residuals carried over.
struct TopK {
  std::vector<std::vector<float>> sums;
  std::vector<std::vector<std::byte>> payloads;
  bool finite = true;
};

TopK top_k_on_host(const GradientCodec& codec, std::vector<std::vector<float>> sums, float scale) {
  TopK result;
  for (auto& part : sums) {
    auto& payload = result.payloads.emplace_back(codec.bytes(part.size()));
    result.finite &= encode_top_k(codec, part, scale, payload.data());
  }
  result.sums = std::move(sums);
  return result;
}

TopK top_k_on(Backend& backend, const GradientCodec& codec,
              const std::vector<std::vector<float>>& sums, float scale) {
  std::vector<Buffer> values, payloads;
  std::vector<TopKPart> parts;
  for (const auto& part : sums) {
    values.push_back(to_device(backend, part));
    payloads.push_back(backend.allocate(codec.bytes(part.size())));
    parts.push_back({values.back().as<float>(), part.size(), payloads.back().as<std::byte>()});
  }
  const Buffer flag = backend.allocate(sizeof(std::int32_t));
  backend.encode_top_k(codec, parts, scale, flag.as<std::int32_t>());
  TopK result;
  result.finite = to_host<std::int32_t>(backend, flag, 1)[0] == 0;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    result.sums.push_back(to_host<float>(backend, values[i], sums[i].size()));
    result.payloads.push_back(
        to_host<std::byte>(backend, payloads[i], codec.bytes(sums[i].size())));
  }
  return result;
}

bool same_floats(const std::vector<float>& a, const std::vector<float>& b) {
  return std::ranges::equal(
      a, b, {}, [](float x) { return std::bit_cast<std::uint32_t>(x); },
      [](float x) { return std::bit_cast<std::uint32_t>(x); });
}

void check_top_k(const GradientCodec& codec, const std::vector<std::vector<float>>& sums) {
  const TopK expected = top_k_on_host(codec, sums, 0.5f);
  for (Backend* backend : backends()) {
    CAPTURE(backend->name());
    const TopK got = top_k_on(*backend, codec, sums, 0.5f);
    CHECK(got.finite == expected.finite);
    std::size_t wrong_payloads = 0, wrong_sums = 0;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      wrong_payloads += got.payloads[i] == expected.payloads[i] ? 0 : 1;
      wrong_sums += same_floats(got.sums[i], expected.sums[i]) ? 0 : 1;
    }
    CHECK(wrong_payloads == 0);
    CHECK(wrong_sums == 0);
  }
}

}  // namespace

TEST_CASE("every backend encodes the host's bytes, of any length, at any address") {
  for (const Codec codec : kOfElements) {
    CAPTURE(to_string(codec));
    for (const std::int64_t size : {0, 1, 3, 4, 5, 31, 32, 33, 127, 1023, 4096, 4097, 9001}) {
      CAPTURE(size);
      const auto count = static_cast<std::size_t>(size);
      for (const std::size_t offset : {0, 1, 2, 3})
        check_same(Encoded({codec}, {{.count = count, .in_offset = offset}}), 0.75f);
    }
  }
}

TEST_CASE("pieces in the middle of payloads write their own alone, as many as there are") {
  for (const Codec codec : kOfElements) {
    CAPTURE(to_string(codec));
    check_same(Encoded({codec}, {{.count = 70, .before = 64, .after = 61},
                                 {.count = 5000, .before = 32, .in_offset = 3},
                                 {.count = 0, .after = 7},
                                 {.count = 1, .before = 4096, .after = 1}}),
               3.0f);
    std::vector<Case> many;
    for (std::size_t i = 0; i < 150; ++i) many.push_back({.count = i % 40, .before = i % 3 * 32});
    many[100].count = 9000;
    check_same(Encoded({codec}, many), 0.5f);
  }
}

TEST_CASE("every backend finds the one value that no payload can hold") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const Codec codec : kOfElements) {
    CAPTURE(to_string(codec));
    Encoded encoded({codec}, {{.count = 33}, {.count = 4200, .in_offset = 1}});
    for (Backend* backend : backends()) {
      CAPTURE(backend->name());
      bool finite = false;
      for (const float bad : {kInfinity, -kInfinity, kNan, 3.0e38f})  // the last * 2
        for (const std::size_t at : {encoded.source_of(0), encoded.source_of(0) + 32,
                                     encoded.source_of(1) + 2, encoded.source_of(1) + 4199}) {
          const float good = std::exchange(encoded.source()[at], bad);
          encoded.on(*backend, 2.0f, finite);
          CHECK_FALSE(finite);
          encoded.source()[at] = good;
        }
      encoded.on(*backend, 2.0f, finite);
      CHECK(finite);
    }
  }
}

TEST_CASE("the mark of what is not finite stays until its owner takes it away") {
  for (Backend* backend : backends()) {
    CAPTURE(backend->name());
    const Buffer flag = to_device(*backend, std::vector<std::int32_t>{1});
    const Buffer in = to_device(*backend, std::vector<float>(40, 1.0f));
    const Buffer out = backend->allocate(200);
    const EncodePiece piece{in.as<float>(), 40, out.as<std::byte>(), 40, 0};
    for (const Codec codec : kOfElements)
      backend->encode({codec}, {&piece, 1}, 1.0f, flag.as<std::int32_t>());
    const TopKPart part{in.as<float>(), 40, out.as<std::byte>()};
    backend->encode_top_k({Codec::kTopK, 0.1}, {&part, 1}, 1.0f, flag.as<std::int32_t>());
    CHECK(to_host<std::int32_t>(*backend, flag, 1)[0] == 1);
  }
}

TEST_CASE("top-k on every backend: the host's elements, also of equal ones, and its residual") {
  for (const double fraction : {0.001, 0.1, 0.5, 1.0}) {
    CAPTURE(fraction);
    const GradientCodec codec{Codec::kTopK, fraction};
    for (const std::size_t size : {1, 31, 33, 1024, 1025, 8191, 8192, 8193, 20011}) {
      CAPTURE(size);
      check_top_k(codec, {gradients(size, 40)});
    }
    check_top_k(codec, {std::vector<float>(9000, 0.0f)});
    check_top_k(codec, {std::vector<float>(9000, -2.5f)});
    // All values of one upper half, so that the last digit decides.
    std::vector<float> close(10000);
    for (std::size_t i = 0; i < close.size(); ++i)
      close[i] = std::ldexp(static_cast<float>(0x800000u + i * 7919 % 1000), -23);
    check_top_k(codec, {close});
  }
}

TEST_CASE("top-k of many parts in one call, which share nothing") {
  const GradientCodec codec{Codec::kTopK, 0.05};
  std::vector<std::vector<float>> parts;
  for (std::size_t i = 0; i < 100; ++i)
    parts.push_back(gradients(i % 7 * 37 + i % 2, static_cast<std::uint32_t>(i)));
  parts[3] = gradients(20000, 3);
  parts[80] = std::vector<float>(8500, 1.0f);
  check_top_k(codec, parts);
  // And again, with the scratch memory as the last call left it.
  check_top_k(codec, {parts[3], parts[5]});
}

TEST_CASE("top-k: what is not finite, or not in bf16, is found among what travels and what stays") {
  const GradientCodec codec{Codec::kTopK, 0.01};
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN(), 3.40e38f}) {
    for (const std::size_t at : {0, 1500, 8999}) {
      std::vector<float> sums = gradients(9000, 60);
      sums[at] = bad;
      for (Backend* backend : backends()) {
        CAPTURE(backend->name());
        CHECK_FALSE(top_k_on(*backend, codec, {gradients(40, 1), sums}, 1.0f).finite);
      }
    }
  }
  // More of them than travel.
  const std::vector<float> all(2000, std::numeric_limits<float>::infinity());
  for (Backend* backend : backends()) CHECK_FALSE(top_k_on(*backend, codec, {all}, 1.0f).finite);
}

}  // namespace leeway::kernels::test
