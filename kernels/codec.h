// Gradient codecs: FP32 into what travels, by the worker. The way back is part of the servers'
// fused update (gradient.h). SIMD chosen at run time, the same bits everywhere.
//
//   f16    IEEE binary16. round to nearest even
//   bf16   the upper half of FP32, round to nearest even
//   fp8_e4m3, fp8_e5m2
//          OCP 8-bit floating point (OFP8 1.0, 2023; Micikevicius et al. 2022, "FP8 formats for
//          deep learning"): E4M3 has bias 7 and reaches 448, E5M2 has bias 15 and reaches 57344.
//          Both have subnormals. With a scale for each 32 elements, as in OCP's microscaling
//          formats (MX 1.0, 2023: MXFP8), 2^(byte - 127), byte 255 being a NaN.
//   int8   the same blocks and scales with elements k / 64, k from -127 to 127 (MXINT8)
//   topk   of a partition the elements of largest magnitude (of equal ones the first), as index
//          and bf16 (Aji and Heafield 2017; with error feedback, Stich et al. 2018, worker/)
//
// A block's scale is the smallest that brings its largest magnitude into the elements' range, so no
// element saturates (MX's own rule takes the largest's exponent alone, and saturates up to an
// eighth of a binade; here the scale is rounded up, as in Mishra et al. 2025, "Recipes for
// pre-training LLMs with MXFP8"). Elements round to nearest even; what is below half of the
// smallest becomes a zero of its sign. Scales below 2^-126 are not used.
//
// The encoders multiply each element by `scale` first and say whether every product is finite and
// stays finite in the format: f16 within 65504, bf16 and topk within the range of bf16, the others
// within that of FP32. When one is not the payload is worthless.
//
// The device's encoders (codec.cu, top_k.cu; a backend's operations) give the same bytes.
//
// Called from any thread. Source and destination do not overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/codec.h"
#include "kernels/gradient.h"

namespace leeway::kernels {

// Elements [at, at + in.size()) of a payload of `elements`, which is codec.bytes(elements) long.
// `at` is a multiple of kScaleBlock. Any codec but top-k, which needs all at once.
bool encode(const GradientCodec& codec, std::span<const float> in, float scale, std::byte* payload,
            std::uint64_t elements, std::uint64_t at);

// Top-k of sums[i]; afterwards each sum is what of it did not travel, times residual_scale.
bool encode_top_k(const GradientCodec& codec, std::span<float> sums, float residual_scale,
                  std::byte* payload);

// What the two take, for backends, which take several at once. A payload is at a multiple of 4.
struct EncodePiece {
  const float* in = nullptr;
  std::uint64_t count = 0;       // of `in`
  std::byte* payload = nullptr;  // of `elements`
  std::uint64_t elements = 0, at = 0;
};
struct TopKPart {
  float* sums = nullptr;
  std::uint64_t elements = 0;  // below 2^32
  std::byte* payload = nullptr;
};

// What is wrong with a payload that has the right length, or "": a scale that is a NaN, an index
// out of range or out of order.
std::string payload_error(const GradientCodec& codec, std::span<const std::byte> payload,
                          std::uint64_t elements);

}  // namespace leeway::kernels
