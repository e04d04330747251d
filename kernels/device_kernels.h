// The CUDA kernels as a table of launchers, one an operation, defined in kernels/<op>.cu. There are
// two builds of the same source: nvcc's, and the emulation of kernels/emulation/ for tests.
//
// Called from the thread that owns the stream; all pointers are device memory except the
// lists: the UpdatePlan's gradients, pieces, parts. Asynchronous: done when the stream is.
// Arguments as in backend.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/half.h"
#include "kernels/codec.h"
#include "kernels/softmax_cross_entropy.h"
#include "kernels/update_plan.h"

namespace leeway::kernels {

using Stream = void*;  // a cudaStream_t

// A launch's parameters hold the gradients; as many workers as this can be summed in one update.
constexpr std::size_t kMaxDeviceGradients = 128;

struct DeviceKernels {
  // Throws std::invalid_argument beyond kMaxDeviceGradients.
  void (*update)(Stream stream, const UpdatePlan& plan);
  // Any codec but kF32 and kTopK.
  void (*encode)(Stream stream, Codec codec, std::span<const EncodePiece> pieces, float scale,
                 std::int32_t* not_finite);
  // `scratch` is so long, holds zeros before the first call, and is the operation's own.
  std::size_t (*top_k_scratch_bytes)(std::span<const TopKPart> parts);
  void (*encode_top_k)(Stream stream, const GradientCodec& codec, std::span<const TopKPart> parts,
                       float residual_scale, std::int32_t* not_finite, std::byte* scratch);
  void (*weighted_sum)(Stream stream, std::int64_t elements, float a, const float* x, float b,
                       const float* y, float* out);
  void (*block_squares)(Stream stream, std::int64_t elements, const float* in, double* out);
  void (*convert)(Stream stream, std::int64_t elements, const std::byte* in, Dtype from,
                  std::byte* out, Dtype to);
  void (*bias_activation)(Stream stream, std::int64_t rows, std::int64_t columns, const float* z,
                          const Half* bias, bool relu, Half* out);
  void (*relu_backward)(Stream stream, std::int64_t elements, const float* da,
                        const Half* activation, Half* dz);
  void (*bias_gradient)(Stream stream, std::int64_t rows, std::int64_t columns, const Half* dz,
                        float beta, float* db);
  // `scratch` is room for `rows` results.
  void (*softmax_cross_entropy)(Stream stream, std::int64_t rows, std::int64_t classes,
                                const Half* logits, const std::int32_t* labels,
                                float gradient_scale, float* loss_sum, std::int32_t* correct,
                                Half* dlogits, RowResult* scratch);
};

}  // namespace leeway::kernels
