// z + bias, then ReLU, in grid strides over the whole matrix.
#include "kernels/device_math.cuh"

namespace leeway::kernels::LEEWAY_DEVICE {

__global__ void bias_activation_kernel(std::int64_t elements, std::int64_t columns, const float* z,
                                       const Half* bias, bool relu, Half* out) {
  for (std::int64_t i = first_index(); i < elements; i += index_stride()) {
    const float sum = z[i] + half_to_float(bias[i % columns]);
    out[i] = float_to_half(relu && sum < 0.0f ? 0.0f : sum);
  }
}

void bias_activation(Stream stream, std::int64_t rows, std::int64_t columns, const float* z,
                     const Half* bias, bool relu, Half* out) {
  const std::int64_t elements = rows * columns;
  launch(bias_activation_kernel, shape_for(elements), stream, elements, columns, z, bias, relu,
         out);
}

}  // namespace leeway::kernels::LEEWAY_DEVICE
