#include "kernels/device_backend.h"

namespace leeway::kernels {

void DeviceBackend::make_room(Buffer& scratch, std::size_t bytes) {
  if (scratch.bytes() >= bytes) return;
  synchronize();  // the old one may still be written
  scratch = allocate(bytes);
}

void DeviceBackend::bias_activation(std::int64_t rows, std::int64_t columns, const float* z,
                                    const Half* bias, bool relu, Half* out) {
  kernels_.bias_activation(stream_, rows, columns, z, bias, relu, out);
}

void DeviceBackend::relu_backward(std::int64_t elements, const float* da, const Half* activation,
                                  Half* dz) {
  kernels_.relu_backward(stream_, elements, da, activation, dz);
}

void DeviceBackend::bias_gradient(std::int64_t rows, std::int64_t columns, const Half* dz,
                                  float beta, float* db) {
  kernels_.bias_gradient(stream_, rows, columns, dz, beta, db);
}

void DeviceBackend::softmax_cross_entropy(std::int64_t rows, std::int64_t classes,
                                          const Half* logits, const std::int32_t* labels,
                                          float gradient_scale, float* loss_sum,
                                          std::int32_t* correct, Half* dlogits) {
  make_room(row_results_, static_cast<std::size_t>(rows) * sizeof(RowResult));
  kernels_.softmax_cross_entropy(stream_, rows, classes, logits, labels, gradient_scale, loss_sum,
                                 correct, dlogits, row_results_.as<RowResult>());
}

void DeviceBackend::scale_to_half(std::int64_t elements, const float* in, float scale, Half* out,
                                  std::int32_t* not_finite) {
  const auto count = static_cast<std::uint64_t>(elements);
  const EncodePiece all{in, count, reinterpret_cast<std::byte*>(out), count, 0};
  kernels_.encode(stream_, Codec::kF16, {&all, 1}, scale, not_finite);
}

void DeviceBackend::convert(std::int64_t elements, const std::byte* in, Dtype from, std::byte* out,
                            Dtype to) {
  kernels_.convert(stream_, elements, in, from, out, to);
}

void DeviceBackend::encode(const GradientCodec& codec, std::span<const EncodePiece> pieces,
                           float scale, std::int32_t* not_finite) {
  kernels_.encode(stream_, codec.codec, pieces, scale, not_finite);
}

void DeviceBackend::encode_top_k(const GradientCodec& codec, std::span<const TopKPart> parts,
                                 float residual_scale, std::int32_t* not_finite) {
  make_room(top_k_scratch_, kernels_.top_k_scratch_bytes(parts));
  kernels_.encode_top_k(stream_, codec, parts, residual_scale, not_finite,
                        top_k_scratch_.as<std::byte>());
}

void DeviceBackend::weighted_sum(std::int64_t elements, float a, const float* x, float b,
                                 const float* y, float* out) {
  kernels_.weighted_sum(stream_, elements, a, x, b, y, out);
}

void DeviceBackend::block_squares(std::int64_t elements, const float* in, double* out) {
  kernels_.block_squares(stream_, elements, in, out);
}

}  // namespace leeway::kernels
