#include "kernels/device_backend.h"

namespace leeway::kernels {

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
  const std::size_t bytes = static_cast<std::size_t>(rows) * sizeof(RowResult);
  if (row_results_.bytes() < bytes) {
    synchronize();  // the old one may still be written
    row_results_ = allocate(bytes);
  }
  kernels_.softmax_cross_entropy(stream_, rows, classes, logits, labels, gradient_scale, loss_sum,
                                 correct, dlogits, row_results_.as<RowResult>());
}

void DeviceBackend::scale_to_half(std::int64_t elements, const float* in, float scale, Half* out,
                                  std::int32_t* not_finite) {
  kernels_.scale_to_half(stream_, elements, in, scale, out, not_finite);
}

void DeviceBackend::block_squares(std::int64_t elements, const float* in, double* out) {
  kernels_.block_squares(stream_, elements, in, out);
}

}  // namespace leeway::kernels
