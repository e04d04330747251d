// The gradient through a ReLU, in grid strides.
#include "kernels/device_math.cuh"

namespace leeway::kernels::LEEWAY_DEVICE {

__global__ void relu_backward_kernel(std::int64_t elements, const float* da, const Half* activation,
                                     Half* dz) {
  for (std::int64_t i = first_index(); i < elements; i += index_stride())
    dz[i] = float_to_half(half_to_float(activation[i]) > 0.0f ? da[i] : 0.0f);
}

void relu_backward(Stream stream, std::int64_t elements, const float* da, const Half* activation,
                   Half* dz) {
  launch(relu_backward_kernel, shape_for(elements), stream, elements, da, activation, dz);
}

}  // namespace leeway::kernels::LEEWAY_DEVICE
