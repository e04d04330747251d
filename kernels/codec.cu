// The encoders of kernels/codec.h but top-k. A thread takes four neighbours, in one load and one
// store where they are aligned; eight threads share a block's scale.
#include <stdexcept>

#include "kernels/batch.cuh"
#include "kernels/block_format.h"
#include "kernels/codec.h"

namespace leeway::kernels::LEEWAY_DEVICE {

constexpr unsigned kEncodeThreads = 256;
constexpr std::int64_t kQuad = 4;
constexpr std::int64_t kEncodeTile = 4 * kQuad * kEncodeThreads;

template <typename T>
struct alignas(kQuad * sizeof(T)) Quad {
  T x[kQuad];
};

template <typename T>
__device__ inline bool quads(const T* array) {
  return reinterpret_cast<std::uintptr_t>(array) % sizeof(Quad<T>) == 0;
}

// Elements [at, at + 4) of `end`; zeros beyond.
template <typename T>
__device__ inline Quad<T> load_quad(const T* array, std::int64_t at, std::int64_t end,
                                    bool aligned) {
  if (aligned && at + kQuad <= end) return *reinterpret_cast<const Quad<T>*>(array + at);
  Quad<T> quad{};
#pragma unroll
  for (std::int64_t i = 0; i < kQuad; ++i)
    if (at + i < end) quad.x[i] = array[at + i];
  return quad;
}

template <typename T>
__device__ inline void store_quad(T* array, std::int64_t at, std::int64_t end, bool aligned,
                                  const Quad<T>& quad) {
  if (aligned && at + kQuad <= end) {
    *reinterpret_cast<Quad<T>*>(array + at) = quad;
    return;
  }
#pragma unroll
  for (std::int64_t i = 0; i < kQuad; ++i)
    if (at + i < end) array[at + i] = quad.x[i];
}

__device__ inline void narrow_to(float value, Half& out) { out = float_to_half(value); }
__device__ inline void narrow_to(float value, Bfloat16& out) { out = float_to_bfloat16(value); }
__device__ inline bool is_finite(Half value) { return (value.bits & 0x7C00u) != 0x7C00u; }
__device__ inline bool is_finite(Bfloat16 value) { return (value.bits & 0x7F80u) != 0x7F80u; }

template <typename T>
__global__ void encode_halves_kernel(Batch<EncodePiece> batch, float scale,
                                     std::int32_t* not_finite) {
  bool finite = true;
  for (std::int64_t tile = blockIdx.x; tile < batch.first_tile[batch.count]; tile += gridDim.x) {
    const std::uint32_t item = item_of(batch, tile);
    const EncodePiece& piece = batch.list[item];
    const float* __restrict__ in = piece.in;
    T* __restrict__ out = reinterpret_cast<T*>(piece.payload) + piece.at;
    const bool in_quads = quads(in);
    const bool out_quads = quads(out);
    const auto count = static_cast<std::int64_t>(piece.count);
    const std::int64_t begin = (tile - batch.first_tile[item]) * kEncodeTile;
#pragma unroll
    for (std::int64_t step = 0; step < kEncodeTile; step += kQuad * kEncodeThreads) {
      const std::int64_t at = begin + step + kQuad * threadIdx.x;
      const Quad<float> values = load_quad(in, at, count, in_quads);
      Quad<T> narrowed;
#pragma unroll
      for (std::int64_t i = 0; i < kQuad; ++i) {
        narrow_to(values.x[i] * scale, narrowed.x[i]);
        finite = finite && is_finite(narrowed.x[i]);
      }
      store_quad(out, at, count, out_quads, narrowed);
    }
  }
  // All that write, write the same.
  if (!finite) *not_finite = 1;
}

template <typename Format>
__global__ void encode_blocks_kernel(Batch<EncodePiece> batch, float scale,
                                     std::int32_t* not_finite) {
  constexpr auto kBlock = static_cast<std::int64_t>(kScaleBlock);
  bool finite = true;
  for (std::int64_t tile = blockIdx.x; tile < batch.first_tile[batch.count]; tile += gridDim.x) {
    const std::uint32_t item = item_of(batch, tile);
    const EncodePiece& piece = batch.list[item];
    const float* __restrict__ in = piece.in;
    std::byte* __restrict__ out = piece.payload + piece.at;
    std::byte* __restrict__ scales = piece.payload + piece.elements + piece.at / kScaleBlock;
    const bool in_quads = quads(in);
    const bool out_quads = quads(out);
    const auto count = static_cast<std::int64_t>(piece.count);
    const std::int64_t begin = (tile - batch.first_tile[item]) * kEncodeTile;
    // Whole warps go through it, since they exchange.
#pragma unroll
    for (std::int64_t step = 0; step < kEncodeTile; step += kQuad * kEncodeThreads) {
      const std::int64_t at = begin + step + kQuad * threadIdx.x;
      const Quad<float> values = load_quad(in, at, count, in_quads);
      float most = 0.0f;
#pragma unroll
      for (std::int64_t i = 0; i < kQuad; ++i) {
        const float magnitude = fabsf(values.x[i] * scale);
        finite = finite && magnitude < INFINITY;
        if (magnitude > most) most = magnitude;
      }
      for (unsigned offset = 1; offset < kBlock / kQuad; offset *= 2) {
        const float other = __shfl_xor_sync(kAllLanes, most, offset);
        if (other > most) most = other;
      }
      const BlockScale shared = Format::template scale_of<Scalar>(most);
      if (at % kBlock == 0 && at < count) scales[at / kBlock] = shared.biased;
      Quad<std::byte> codes;
#pragma unroll
      for (std::int64_t i = 0; i < kQuad; ++i)
        codes.x[i] = Format::template code<Scalar>(values.x[i] * scale * shared.inverse);
      store_quad(out, at, count, out_quads, codes);
    }
  }
  if (!finite) *not_finite = 1;
}

void encode(Stream stream, Codec codec, std::span<const EncodePiece> pieces, float scale,
            std::int32_t* not_finite) {
  auto* kernel = codec == Codec::kF16       ? &encode_halves_kernel<Half>
                 : codec == Codec::kBf16    ? &encode_halves_kernel<Bfloat16>
                 : codec == Codec::kFp8E4m3 ? &encode_blocks_kernel<E4m3>
                 : codec == Codec::kFp8E5m2 ? &encode_blocks_kernel<E5m2>
                 : codec == Codec::kInt8    ? &encode_blocks_kernel<Int8>
                                            : nullptr;
  if (kernel == nullptr) throw std::invalid_argument("encode: not a codec of single elements");
  for (std::size_t at = 0; at < pieces.size();) {
    const auto batch = next_batch<EncodePiece>(
        pieces, at, kEncodeTile, [](const EncodePiece& piece) { return piece; },
        [](const EncodePiece& piece) { return piece.count; });
    launch(kernel, shape_of(batch, kEncodeThreads), stream, batch, scale, not_finite);
  }
}

}  // namespace leeway::kernels::LEEWAY_DEVICE
