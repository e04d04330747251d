#include "kernels/codec.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>

#include "kernels/cpu_kernels.h"
#include "kernels/optimizer.h"
#include "tests/unit/kernels/executors.h"

namespace leeway::kernels::test {
namespace {

constexpr Codec kWithScales[] = {Codec::kFp8E4m3, Codec::kFp8E5m2, Codec::kInt8};

// By the standards' tables: sign, exponent and mantissa of a code, no bit tricks. NaNs and
// infinities are left out.
std::vector<double> values_of(Codec codec) {
  std::vector<double> values(256, std::numeric_limits<double>::quiet_NaN());
  for (int code = 0; code < 256; ++code) {
    if (codec == Codec::kInt8) {
      const int k = code < 128 ? code : code - 256;
      if (k != -128) values[static_cast<std::size_t>(code)] = k / 64.0;
      continue;
    }
    const int mantissa_bits = codec == Codec::kFp8E4m3 ? 3 : 2;
    const int bias = codec == Codec::kFp8E4m3 ? 7 : 15;
    const int exponent = (code & 0x7F) >> mantissa_bits;
    const int mantissa = code & ((1 << mantissa_bits) - 1);
    if (codec == Codec::kFp8E4m3 && (code & 0x7F) == 0x7F) continue;
    if (codec == Codec::kFp8E5m2 && exponent == 31) continue;
    const double fraction = std::ldexp(mantissa, -mantissa_bits);
    const double magnitude =
        exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
    values[static_cast<std::size_t>(code)] = code >= 128 ? -magnitude : magnitude;
  }
  return values;
}

std::vector<std::byte> encode_with(const CpuKernels& table, Codec codec,
                                   const std::vector<float>& in, float scale = 1.0f) {
  std::vector<std::byte> payload(GradientCodec{codec}.bytes(in.size()));
  REQUIRE(table.encode_blocks(codec, in.data(), in.size(), scale, payload.data(),
                              payload.data() + in.size()));
  return payload;
}

std::vector<std::byte> encode_all(const GradientCodec& codec, std::vector<float> in) {
  std::vector<std::byte> payload(codec.bytes(in.size()));
  const bool finite = codec.codec == Codec::kTopK
                          ? encode_top_k(codec, in, 1.0f, payload.data())
                          : encode(codec, in, 1.0f, payload.data(), in.size(), 0);
  REQUIRE(finite);
  return payload;
}

std::vector<float> decode_all(const GradientCodec& codec, const std::vector<std::byte>& payload,
                              std::size_t elements) {
  const Gradient gradient = read_gradient(codec, payload.data(), elements, 1.0f);
  std::vector<float> values(elements);
  for (std::size_t i = 0; i < elements; ++i) values[i] = load_element(gradient, i);
  return values;
}

// All sizes of numbers that FP32 has, blocks of one size and blocks of many.
std::vector<float> all_magnitudes(std::int64_t count, std::uint32_t seed) {
  Random random(seed);
  std::vector<float> values = random.floats(count);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const int spread = i / 64 % 2 == 0 ? 4 : 40;
    const int middle = static_cast<int>(i / 128 * 31 % 240) - 140;
    values[i] = std::ldexp(values[i], std::min(middle + random.below(spread), 127));
    if (random.below(9) == 0) values[i] = 0;
  }
  return values;
}

}  // namespace

TEST_CASE("a payload is as long as its codec says, of any number of elements") {
  CHECK(GradientCodec{Codec::kF16}.bytes(3) == 6);
  CHECK(GradientCodec{Codec::kF32}.bytes(3) == 12);
  for (const Codec codec : kWithScales) {
    CHECK(GradientCodec{codec}.bytes(0) == 0);
    CHECK(GradientCodec{codec}.bytes(1) == 2);
    CHECK(GradientCodec{codec}.bytes(32) == 33);
    CHECK(GradientCodec{codec}.bytes(33) == 35);
  }
  const GradientCodec top{Codec::kTopK, 0.01};
  CHECK(top.bytes(0) == 0);
  CHECK(top.kept(1) == 1);
  CHECK(top.kept(100) == 1);
  CHECK(top.kept(101) == 2);
  CHECK(top.bytes(101) == 12);
  CHECK(GradientCodec{Codec::kTopK, 1.0}.kept(7) == 7);
}

TEST_CASE("every code of one byte has the value that its standard gives it") {
  for (const Codec codec : kWithScales) {
    CAPTURE(to_string(codec));
    const std::vector<double> values = values_of(codec);
    for (const int exponent : {1, 100, 127, 150, 240}) {
      std::vector<std::byte> payload(GradientCodec{codec}.bytes(256), std::byte(exponent));
      for (std::size_t i = 0; i < 256; ++i) payload[i] = std::byte(i);
      const auto decoded = decode_all({codec}, payload, 256);
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < 256; ++i)
        if (!std::isnan(values[i]))
          wrong += decoded[i] == static_cast<float>(std::ldexp(values[i], exponent - 127)) ? 0 : 1;
      CHECK(wrong == 0);
    }
  }
  CHECK(values_of(Codec::kFp8E4m3)[0x7E] == 448);
  CHECK(values_of(Codec::kFp8E5m2)[0x7B] == 57344);
}

TEST_CASE("elements become the nearest code, of two as near the even one, under a tight scale") {
  for (const Codec codec : kWithScales) {
    CAPTURE(to_string(codec));
    const std::vector<double> values = values_of(codec);
    const double largest = values[codec == Codec::kFp8E4m3   ? 0x7E
                                  : codec == Codec::kFp8E5m2 ? 0x7B
                                                             : 127];
    std::vector<float> in = all_magnitudes(4096, 3);
    for (std::size_t i = 0; i + 32 <= 1024; i += 32) {  // exact codes and the middles between them
      in[i] = static_cast<float>(largest);
      for (std::size_t k = 1; k < 32; ++k) {
        const double low = values[(i + k) % 120];
        const double high = values[(i + k) % 120 + 1];
        in[i + k] = static_cast<float>(k % 2 == 0 ? low : (low + high) / 2);
      }
    }
    const std::vector<std::byte> payload = encode_all({codec}, in);
    std::size_t not_nearest = 0, not_even = 0, loose = 0;
    for (std::size_t block = 0; block < in.size() / 32; ++block) {
      const int exponent = static_cast<int>(payload[in.size() + block]) - 127;
      double most = 0;
      for (std::size_t i = block * 32; i < block * 32 + 32; ++i) {
        const double x = std::ldexp(static_cast<double>(in[i]), -exponent);
        most = std::max(most, std::fabs(x));
        const auto code = static_cast<std::size_t>(payload[i]);
        const double error = std::fabs(values[code] - x);
        for (std::size_t other = 0; other < 256; ++other) {
          if (std::isnan(values[other]) || values[other] == values[code]) continue;
          const double its = std::fabs(values[other] - x);
          not_nearest += its < error ? 1 : 0;
          not_even += its == error && code % 2 != 0 ? 1 : 0;
        }
      }
      // No element is cut off, and half the scale would cut one off.
      loose += most <= largest && (most * 2 > largest || exponent == -126) ? 0 : 1;
    }
    CHECK(not_nearest == 0);
    CHECK(not_even == 0);
    CHECK(loose == 0);
  }
}

TEST_CASE("every version encodes the same bytes, of any length") {
  for (const CpuKernels* table : available_cpu_kernels()) {
    CAPTURE(table->name);
    for (const std::int64_t size : kSizes) {
      CAPTURE(size);
      const std::vector<float> in = all_magnitudes(size, 5);
      for (const Codec codec : kWithScales)
        CHECK(encode_with(*table, codec, in, 0.75f) ==
              encode_with(scalar_kernels(), codec, in, 0.75f));
      std::vector<Bfloat16> expected(in.size()), got(in.size());
      CHECK(scalar_kernels().encode_bf16(in.data(), in.size(), 0.75f, expected.data()));
      CHECK(table->encode_bf16(in.data(), in.size(), 0.75f, got.data()));
      CHECK(got == expected);
    }
  }
}

TEST_CASE("a tensor in the middle of a payload writes its own elements and scales alone") {
  for (const Codec codec : {Codec::kF16, Codec::kBf16, Codec::kFp8E4m3, Codec::kInt8}) {
    CAPTURE(to_string(codec));
    const GradientCodec spec{codec};
    constexpr std::size_t kAll = 200, kAt = 64, kCount = 70;
    std::vector<std::byte> payload(spec.bytes(kAll));
    const std::vector<float> ones(kCount, 1.0f);
    CHECK(encode(spec, ones, 0.5f, payload.data(), kAll, kAt));
    const auto values = decode_all(spec, payload, kAll);
    for (std::size_t i = 0; i < kAll; ++i)
      CHECK(values[i] == (i >= kAt && i < kAt + kCount ? 0.5f : 0.0f));
  }
}

TEST_CASE("one value that no payload can hold is found wherever it lies") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const CpuKernels* table : available_cpu_kernels()) {
    CAPTURE(table->name);
    std::vector<float> in(75, 1e30f);
    std::vector<std::byte> out(in.size() + 3);
    std::vector<Bfloat16> halves(in.size());
    for (const float bad : {kInfinity, -kInfinity, kNan, 3.0e38f, -3.0e38f}) {  // the last * 2
      for (std::size_t at = 0; at < in.size(); ++at) {
        in[at] = bad;
        for (const Codec codec : kWithScales)
          CHECK_FALSE(table->encode_blocks(codec, in.data(), in.size(), 2.0f, out.data(),
                                           out.data() + in.size()));
        CHECK_FALSE(table->encode_bf16(in.data(), in.size(), 2.0f, halves.data()));
        in[at] = 1e30f;
      }
    }
    for (const Codec codec : kWithScales)
      CHECK(table->encode_blocks(codec, in.data(), in.size(), 2.0f, out.data(),
                                 out.data() + in.size()));
    for (const float edge : {3.3895e38f, 3.40e38f}) {  // the largest bf16; rounds beyond it
      CHECK(table->encode_bf16(&edge, 1, 1.0f, halves.data()) == (edge < 3.39e38f));
      std::byte code, scale;
      CHECK(table->encode_blocks(Codec::kInt8, &edge, 1, 1.0f, &code, &scale));
    }
  }
  for (const float bad : {kInfinity, kNan, 3.40e38f}) {
    std::vector<float> sums(40, 1.0f);
    sums[33] = bad;
    std::vector<std::byte> payload(GradientCodec{Codec::kTopK, 0.1}.bytes(40));
    CHECK_FALSE(encode_top_k({Codec::kTopK, 0.1}, sums, 1.0f, payload.data()));
  }
}

TEST_CASE("top-k takes the largest, of equal ones the first, and leaves the rest behind") {
  Random random(11);
  for (const double fraction : {0.001, 0.1, 0.5, 1.0}) {
    for (const std::int64_t size : kSizes) {
      CAPTURE(size);
      CAPTURE(fraction);
      const GradientCodec codec{Codec::kTopK, fraction};
      std::vector<float> in = all_magnitudes(size, 12);
      for (float& x : in)
        if (random.below(3) == 0) x = static_cast<float>(random.below(5) - 2);
      std::vector<float> rest = in;
      std::vector<std::byte> payload(codec.bytes(in.size()));
      CHECK(encode_top_k(codec, rest, 1.0f, payload.data()));
      CHECK(payload_error(codec, payload, in.size()) == "");
      std::vector<std::size_t> order(in.size());
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::ranges::stable_sort(order, std::ranges::greater(),
                               [&](std::size_t i) { return std::fabs(in[i]); });
      order.resize(codec.kept(in.size()));
      const auto sent = decode_all(codec, payload, in.size());
      std::vector<float> expected(in.size());
      for (const std::size_t i : order) expected[i] = to_float(to_bfloat16(in[i]));
      CHECK(sent == expected);
      std::size_t lost = 0;
      for (std::size_t i = 0; i < in.size(); ++i) lost += sent[i] + rest[i] == in[i] ? 0 : 1;
      CHECK(lost == 0);
    }
  }
}

TEST_CASE("a payload with a bad scale or a bad index is named") {
  std::vector<std::byte> scales = encode_all({Codec::kFp8E5m2}, std::vector<float>(100, 1.0f));
  CHECK(payload_error({Codec::kFp8E5m2}, scales, 100) == "");
  scales[102] = std::byte{0xFF};
  CHECK(payload_error({Codec::kFp8E5m2}, scales, 100) ==
        "the scale of elements 64 and on is not a number");
  const GradientCodec top{Codec::kTopK, 0.02};
  std::vector<std::byte> payload(top.bytes(100));
  const auto indices = [&](std::uint32_t a, std::uint32_t b) {
    std::memcpy(payload.data(), &a, 4);
    std::memcpy(payload.data() + 4, &b, 4);
    return payload_error(top, payload, 100);
  };
  CHECK(indices(0, 99) == "");
  CHECK(indices(0, 100) == "index 100 is beyond its 100 elements");
  CHECK(indices(7, 7) == "index 7 comes after 7");
  CHECK(indices(7, 3) == "index 3 comes after 7");
}

TEST_CASE("decode and update give the same bits in every version, wherever its blocks begin") {
  constexpr std::int64_t kStreamed = 131072 + 45;  // half a MiB of FP32, streamed from a middle
  for (const std::int64_t size : {0, 1, 31, 33, 1023, 2053, static_cast<int>(kStreamed)}) {
    CAPTURE(size);
    std::vector<GradientCodec> codecs;
    for (const Codec codec :
         {Codec::kF16, Codec::kBf16, Codec::kFp8E4m3, Codec::kFp8E5m2, Codec::kInt8, Codec::kTopK})
      codecs.push_back({codec, 0.1});
    std::vector<std::vector<std::byte>> payloads;
    for (std::size_t c = 0; c < codecs.size(); ++c)
      payloads.push_back(encode_all(
          codecs[c], Random(20 + static_cast<std::uint32_t>(c)).floats(size, -300.0f, 300.0f)));
    const std::vector<float> start = Random(30).floats(size);
    const auto elements = static_cast<std::size_t>(size);
    // Each alone, then all in one sum.
    for (std::size_t c = 0; c <= codecs.size(); ++c) {
      CAPTURE(c);
      const auto run = [&](const auto& execute) {
        std::vector<float> master = start;
        std::vector<float> publish(elements + 1);
        UpdateArgs args{.weight = 0.5f, .elements = elements, .publish_dtype = Dtype::kF32};
        execute(args, master, publish);
        master.insert(master.end(), publish.begin(), publish.end());
        return master;
      };
      const auto of_codecs = [&](auto payload_of) {
        std::vector<Gradient> gradients;
        for (std::size_t i = 0; i < codecs.size(); ++i)
          if (c == i || c == codecs.size())
            gradients.push_back(read_gradient(codecs[i], payload_of(i), elements, 0.37f));
        return gradients;
      };
      const auto on_cpu = [&](const CpuKernels& table) {
        return run([&](UpdateArgs& args, auto& master, auto& publish) {
          const auto gradients = of_codecs([&](std::size_t i) { return payloads[i].data(); });
          args.gradients = gradients;
          args.master = master.data();
          args.publish = reinterpret_cast<std::byte*>(publish.data() + 1);
          const UpdatePlan plan = plan_update(Optimizer::kSgd, {}, args);
          table.update(&plan, 1);
        });
      };
      const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
        return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
      };
      const std::vector<float> expected = on_cpu(scalar_kernels());
      for (const CpuKernels* table : available_cpu_kernels()) {
        CAPTURE(table->name);
        CHECK(same(on_cpu(*table), expected));
      }
      if (size == kStreamed) continue;
      for (DeviceBackend* device : device_backends()) {
        CAPTURE(device->name());
        CHECK(same(
            run([&](UpdateArgs& args, auto& master, auto& publish) {
              std::vector<Buffer> there;
              for (const auto& payload : payloads) there.push_back(to_device(*device, payload));
              const auto gradients =
                  of_codecs([&](std::size_t i) { return there[i].template as<std::byte>(); });
              const Buffer weights = to_device(*device, master);
              const Buffer published = to_device(*device, publish);
              args.gradients = gradients;
              args.master = weights.template as<float>();
              args.publish = published.template as<std::byte>(4);
              device->kernels().update(device->stream(), plan_update(Optimizer::kSgd, {}, args));
              master = to_host<float>(*device, weights, master.size());
              publish = to_host<float>(*device, published, publish.size());
            }),
            expected));
      }
    }
  }
}

TEST_CASE("an update survives any bytes") {
  Random random(40);
  for (const Codec codec : {Codec::kFp8E4m3, Codec::kFp8E5m2, Codec::kInt8, Codec::kTopK}) {
    const GradientCodec spec{codec, 0.2};
    for (int round = 0; round < 50; ++round) {
      const std::size_t elements = static_cast<std::size_t>(random.below(3000)) + 1;
      std::vector<std::byte> payload(spec.bytes(elements));
      for (std::byte& byte : payload)
        byte = static_cast<std::byte>(random.below(round % 2 == 0 ? 256 : 12));
      for (const CpuKernels* table : available_cpu_kernels()) {
        std::vector<float> master(elements);
        const Gradient gradient = read_gradient(spec, payload.data(), elements, 1.0f);
        UpdateArgs args{.gradients = {&gradient, 1}, .elements = elements};
        args.master = master.data();
        const UpdatePlan plan = plan_update(Optimizer::kSgd, {}, args);
        table->update(&plan, 1);
      }
    }
  }
}

}  // namespace leeway::kernels::test
