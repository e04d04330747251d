// An element a thread in grid strides. See kernels/weighted_sum.h.
#include "kernels/device_math.cuh"

namespace leeway::kernels::LEEWAY_DEVICE {

__global__ void weighted_sum_kernel(std::int64_t elements, float a, const float* x, float b,
                                    const float* y, float* out) {
  for (std::int64_t i = first_index(); i < elements; i += index_stride())
    out[i] = a * x[i] + b * y[i];
}

void weighted_sum(Stream stream, std::int64_t elements, float a, const float* x, float b,
                  const float* y, float* out) {
  launch(weighted_sum_kernel, shape_for(elements), stream, elements, a, x, b, y, out);
}

}  // namespace leeway::kernels::LEEWAY_DEVICE
