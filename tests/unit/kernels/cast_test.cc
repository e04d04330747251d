#include "kernels/cast.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu_kernels.h"
#include "tests/unit/kernels/executors.h"

namespace leeway::kernels::test {
namespace {

bool same_float(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

bool same_half(Half a, Half b) {
  return a == b || (std::isnan(to_float(a)) && std::isnan(to_float(b)));
}

// Values on and beside every rounding boundary of FP16, and specials.
std::vector<float> interesting_floats() {
  std::vector<float> values;
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const float exact = to_float(Half{static_cast<std::uint16_t>(bits)});
    values.push_back(exact);
    if (!std::isfinite(exact)) continue;
    const float next = to_float(Half{static_cast<std::uint16_t>(bits + 1)});
    if (!std::isfinite(next)) continue;
    const float middle = (exact + next) / 2;
    values.push_back(middle);
    values.push_back(std::nextafter(middle, exact));
    values.push_back(std::nextafter(middle, next));
  }
  for (float special :
       {65504.0f, 65519.996f, 65520.0f, 65536.0f, 3.4e38f, 1e-8f, 1e-38f, 1e-45f,
        std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    values.push_back(special);
    values.push_back(-special);
  }
  return values;
}

TEST_CASE("every half widens as the scalar conversion says") {
  std::vector<Half> halves(0x10000);
  std::vector<Bfloat16> bfloats(0x10000);
  for (std::size_t i = 0; i < halves.size(); ++i) {
    halves[i].bits = static_cast<std::uint16_t>(i);
    bfloats[i].bits = static_cast<std::uint16_t>(i);
  }
  std::vector<float> wide(0x10000);
  for (const CpuKernels* table : available_cpu_kernels()) {
    CAPTURE(table->name);
    table->widen(reinterpret_cast<const std::byte*>(halves.data()), halves.size(), Dtype::kF16,
                 wide.data());
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < wide.size(); ++i)
      wrong += same_float(wide[i], to_float(halves[i])) ? 0 : 1;
    CHECK(wrong == 0);
    table->widen(reinterpret_cast<const std::byte*>(bfloats.data()), bfloats.size(), Dtype::kBf16,
                 wide.data());
    for (std::size_t i = 0; i < wide.size(); ++i)
      wrong += same_float(wide[i], to_float(bfloats[i])) ? 0 : 1;
    CHECK(wrong == 0);
  }
}

TEST_CASE("narrowing rounds to nearest even in every version") {
  const std::vector<float> values = interesting_floats();
  for (const CpuKernels* table : available_cpu_kernels()) {
    CAPTURE(table->name);
    std::vector<Half> halves(values.size());
    table->narrow(values.data(), values.size(), Dtype::kF16,
                  reinterpret_cast<std::byte*>(halves.data()));
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < values.size(); ++i)
      wrong += same_half(halves[i], to_half(values[i])) ? 0 : 1;
    CHECK(wrong == 0);
    std::vector<Bfloat16> bfloats(values.size());
    table->narrow(values.data(), values.size(), Dtype::kBf16,
                  reinterpret_cast<std::byte*>(bfloats.data()));
    for (std::size_t i = 0; i < values.size(); ++i)
      wrong += bfloats[i] == to_bfloat16(values[i]) ? 0 : 1;
    CHECK(wrong == 0);
  }
}

TEST_CASE("scale_to_half agrees for every length, aligned or not, short or streamed") {
  Random random(1);
  for (const CpuKernels* table : available_cpu_kernels()) {
    CAPTURE(table->name);
    for (std::int64_t size : {0, 1, 3, 7, 8, 9, 16, 17, 33, 1025, 140001}) {
      CAPTURE(size);
      for (std::size_t offset : {0, 1}) {
        const std::vector<float> in = random.floats(size);
        std::vector<Half> out(in.size() + offset + 1);
        out.back().bits = 0x5A5A;
        CHECK(table->scale_to_half(in.data(), in.size(), 1024.0f, out.data() + offset));
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < in.size(); ++i)
          wrong += out[i + offset] == to_half(in[i] * 1024.0f) ? 0 : 1;
        CHECK(wrong == 0);
        CHECK(out.back().bits == 0x5A5A);  // nothing beyond the end
      }
    }
  }
}

TEST_CASE("one value that is not finite is found wherever it lies") {
  constexpr float kScale = 2.0f;
  for (const CpuKernels* table : available_cpu_kernels()) {
    CAPTURE(table->name);
    for (float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN(), 32760.0f, -40000.0f}) {
      CAPTURE(bad);
      for (std::size_t at = 0; at < 41; ++at) {
        std::vector<float> in(41, 1.0f);
        std::vector<Half> out(in.size());
        CHECK(table->scale_to_half(in.data(), in.size(), kScale, out.data()));
        in[at] = bad;
        CHECK_FALSE(table->scale_to_half(in.data(), in.size(), kScale, out.data()));
      }
    }
    // 32752 * 2 = 65504 is the largest half, 32759.9 * 2 still rounds to it.
    for (float good : {32752.0f, 32759.9f, -32759.9f}) {
      Half out;
      CHECK(table->scale_to_half(&good, 1, kScale, &out));
      CHECK(std::abs(to_float(out)) == 65504.0f);
    }
  }
}

TEST_CASE("convert and widen copy FP32 and take empty spans") {
  const std::vector<float> values{1.5f, -2.0f, 1e-30f};
  std::vector<float> copied(3);
  convert(values, Dtype::kF32, reinterpret_cast<std::byte*>(copied.data()));
  CHECK(copied == values);
  std::vector<float> wide(3);
  widen(reinterpret_cast<const std::byte*>(values.data()), Dtype::kF32, wide);
  CHECK(wide == values);
  convert({}, Dtype::kF16, nullptr);
  widen(nullptr, Dtype::kF16, {});
  CHECK(scale_to_half({}, 1.0f, nullptr));
}

TEST_CASE("every backend converts between all types with the scalar conversions' bits") {
  std::vector<float> values;
  const std::vector<float> all = interesting_floats();
  constexpr std::size_t kStride = 7;  // prime to the four kinds that alternate in the list
  for (std::size_t i = 0; i < all.size(); i += kStride) values.push_back(all[i]);
  const auto element = [](const std::vector<std::byte>& bytes, Dtype dtype, std::size_t i) {
    std::uint16_t bits = 0;
    float value = 0;
    if (dtype == Dtype::kF32)
      std::memcpy(&value, bytes.data() + i * 4, 4);
    else
      std::memcpy(&bits, bytes.data() + i * 2, 2);
    return dtype == Dtype::kF16    ? to_float(Half{bits})
           : dtype == Dtype::kBf16 ? to_float(Bfloat16{bits})
                                   : value;
  };
  const auto rounded = [](float value, Dtype dtype) {
    return dtype == Dtype::kF16    ? to_float(to_half(value))
           : dtype == Dtype::kBf16 ? to_float(to_bfloat16(value))
                                   : value;
  };
  for (Backend* backend : backends()) {
    CAPTURE(backend->name());
    for (const Dtype from : {Dtype::kF32, Dtype::kF16, Dtype::kBf16}) {
      std::vector<std::byte> in(values.size() * size_of(from));
      convert(values, from, in.data());
      const Buffer source = to_device(*backend, in);
      for (const Dtype to : {Dtype::kF32, Dtype::kF16, Dtype::kBf16}) {
        CAPTURE(to_string(from));
        CAPTURE(to_string(to));
        const Buffer out = backend->allocate(values.size() * size_of(to));
        backend->convert(static_cast<std::int64_t>(values.size()), source.as<std::byte>(), from,
                         out.as<std::byte>(), to);
        const auto got = to_host<std::byte>(*backend, out, values.size() * size_of(to));
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < values.size(); ++i)
          wrong += same_float(element(got, to, i), rounded(rounded(values[i], from), to)) ? 0 : 1;
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("a backend's scale_to_half sets the flag and never clears it") {
  Random random(2);
  for (Backend* backend : backends()) {
    CAPTURE(backend->name());
    const Buffer flag = backend->allocate(sizeof(std::int32_t));
    const auto flag_value = [&] { return to_host<std::int32_t>(*backend, flag, 1)[0]; };
    for (std::int64_t size : kSizes) {
      CAPTURE(size);
      std::vector<float> in = random.floats(size);
      const Buffer device_in = to_device(*backend, in);
      const Buffer out = backend->allocate(in.size() * sizeof(Half));
      backend->fill_zero(flag.as<std::int32_t>(), sizeof(std::int32_t));
      backend->scale_to_half(size, device_in.as<float>(), 256.0f, out.as<Half>(),
                             flag.as<std::int32_t>());
      CHECK(flag_value() == 0);
      const auto halves = to_host<Half>(*backend, out, in.size());
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < in.size(); ++i)
        wrong += halves[i] == to_half(in[i] * 256.0f) ? 0 : 1;
      CHECK(wrong == 0);
      if (size == 0) continue;
      in.back() = 256.0f;  // * 256 = 65536: one too large
      backend->upload(device_in.as<float>(), in.data(), in.size() * sizeof(float));
      backend->scale_to_half(size, device_in.as<float>(), 256.0f, out.as<Half>(),
                             flag.as<std::int32_t>());
      CHECK(flag_value() == 1);
      backend->scale_to_half(size - 1, device_in.as<float>(), 256.0f, out.as<Half>(),
                             flag.as<std::int32_t>());
      CHECK(flag_value() == 1);
    }
  }
}

}  // namespace
}  // namespace leeway::kernels::test
