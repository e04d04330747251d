#include "kernels/codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "common/result.h"
#include "kernels/block_format.h"
#include "kernels/cpu_kernels.h"
#include "kernels/scalar.h"

namespace leeway::kernels {
namespace scalar {
namespace {

template <typename Format>
bool encode_all(const float* in, std::size_t elements, float scale, std::byte* out,
                std::byte* scales) {
  bool finite = true;
  for (std::size_t begin = 0; begin < elements; begin += kScaleBlock) {
    const std::size_t end = std::min<std::size_t>(begin + kScaleBlock, elements);
    float most = 0.0f;
    for (std::size_t i = begin; i < end; ++i) {
      const float magnitude = std::fabs(in[i] * scale);
      finite &= magnitude < INFINITY;
      if (magnitude > most) most = magnitude;
    }
    const BlockScale shared = Format::template scale_of<Scalar>(most);
    scales[begin / kScaleBlock] = shared.biased;
    for (std::size_t i = begin; i < end; ++i)
      out[i] = Format::template code<Scalar>(in[i] * scale * shared.inverse);
  }
  return finite;
}

}  // namespace

bool encode_bf16(const float* in, std::size_t elements, float scale, Bfloat16* out) {
  bool finite = true;
  for (std::size_t i = 0; i < elements; ++i) {
    out[i] = to_bfloat16(in[i] * scale);
    finite &= (out[i].bits & 0x7F80u) != 0x7F80u;
  }
  return finite;
}

bool encode_blocks(Codec codec, const float* in, std::size_t elements, float scale, std::byte* out,
                   std::byte* scales) {
  if (codec == Codec::kFp8E4m3) return encode_all<E4m3>(in, elements, scale, out, scales);
  if (codec == Codec::kFp8E5m2) return encode_all<E5m2>(in, elements, scale, out, scales);
  return encode_all<Int8>(in, elements, scale, out, scales);
}

}  // namespace scalar

namespace {

std::uint32_t magnitude_of(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFu;
}

// The bits of the kth largest magnitude and how many are larger. Digit by digit from above, each in
// a pass that counts: exact, and linear whatever the values.
struct Threshold {
  std::uint32_t bits = 0;
  std::uint64_t larger = 0;
};

Threshold kth_largest(std::span<const float> values, std::uint64_t k) {
  constexpr int kDigits[][2] = {{20, 11}, {10, 10}, {0, 10}};  // lowest bit and width of each
  Threshold found;
  std::uint32_t known = 0;  // the mask of the bits that are found
  for (const auto& [low, width] : kDigits) {
    std::array<std::uint32_t, 2048> counts{};
    const std::uint32_t digit = (1u << width) - 1;
    for (const float value : values) {
      const std::uint32_t bits = magnitude_of(value);
      if ((bits & known) == found.bits) ++counts[bits >> low & digit];
    }
    std::uint32_t at = digit;
    while (found.larger + counts[at] < k) found.larger += counts[at--];
    found.bits |= at << low;
    known |= digit << low;
  }
  return found;
}

}  // namespace

Gradient read_gradient(const GradientCodec& codec, const std::byte* payload, std::uint64_t elements,
                       float inverse_scale) {
  Gradient gradient{.data = payload, .codec = codec.codec, .inverse_scale = inverse_scale};
  if (has_block_scales(codec.codec)) gradient.extra = payload + elements;
  if (codec.codec == Codec::kTopK) {
    gradient.kept = static_cast<std::uint32_t>(codec.kept(elements));
    gradient.extra = payload + std::size_t{4} * gradient.kept;
  }
  return gradient;
}

bool encode(const GradientCodec& codec, std::span<const float> in, float scale, std::byte* payload,
            std::uint64_t elements, std::uint64_t at) {
  LEEWAY_CHECK(codec.codec != Codec::kTopK && at % kScaleBlock == 0 && at + in.size() <= elements);
  const CpuKernels& kernels = cpu_kernels();
  if (has_block_scales(codec.codec))
    return kernels.encode_blocks(codec.codec, in.data(), in.size(), scale, payload + at,
                                 payload + elements + at / kScaleBlock);
  std::byte* const out = payload + at * 2;
  if (codec.codec == Codec::kBf16)
    return kernels.encode_bf16(in.data(), in.size(), scale, reinterpret_cast<Bfloat16*>(out));
  return kernels.scale_to_half(in.data(), in.size(), scale, reinterpret_cast<Half*>(out));
}

bool encode_top_k(const GradientCodec& codec, std::span<float> sums, float residual_scale,
                  std::byte* payload) {
  const std::uint64_t kept = codec.kept(sums.size());
  if (kept == 0) return true;
  const Threshold threshold = kth_largest(sums, kept);
  std::uint64_t equal = kept - threshold.larger;  // of those as large as the last, how many go
  std::uint64_t sent = 0;
  std::uint32_t most = 0;
  std::byte* const values = payload + kept * 4;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const std::uint32_t magnitude = magnitude_of(sums[i]);
    most = std::max(most, magnitude);
    if (magnitude > threshold.bits || (magnitude == threshold.bits && equal > 0)) {
      if (magnitude == threshold.bits) --equal;
      const auto index = static_cast<std::uint32_t>(i);
      const Bfloat16 value = to_bfloat16(sums[i]);
      most = std::max(most, magnitude_of(to_float(value)));
      std::memcpy(payload + sent * 4, &index, sizeof(index));
      std::memcpy(values + sent * 2, &value, sizeof(value));
      ++sent;
      sums[i] -= to_float(value);
    }
    sums[i] *= residual_scale;
  }
  return most < 0x7F800000u;
}

std::string payload_error(const GradientCodec& codec, std::span<const std::byte> payload,
                          std::uint64_t elements) {
  if (has_block_scales(codec.codec)) {
    const auto scales = payload.subspan(elements);
    const auto bad = std::ranges::find(scales, std::byte{0xFF});
    if (bad == scales.end()) return {};
    return fmt::format("the scale of elements {} and on is not a number",
                       static_cast<std::uint64_t>(bad - scales.begin()) * kScaleBlock);
  }
  if (codec.codec != Codec::kTopK) return {};
  std::uint64_t least = 0;  // that the next index may be
  for (std::uint64_t n = 0; n < codec.kept(elements); ++n) {
    std::uint32_t index;
    std::memcpy(&index, payload.data() + n * 4, sizeof(index));
    if (index >= elements)
      return fmt::format("index {} is beyond its {} elements", index, elements);
    if (index < least) return fmt::format("index {} comes after {}", index, least - 1);
    least = std::uint64_t{index} + 1;
  }
  return {};
}

}  // namespace leeway::kernels
