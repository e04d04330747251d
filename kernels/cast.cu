// Conversions, an element a thread in grid strides. See kernels/cast.h.
#include "kernels/device_math.cuh"

namespace leeway::kernels::LEEWAY_DEVICE {

__global__ void narrow_kernel(std::int64_t elements, const float* in, Dtype dtype, std::byte* out) {
  for (std::int64_t i = first_index(); i < elements; i += index_stride())
    store_element(out, dtype, i, in[i]);
}

void narrow(Stream stream, std::int64_t elements, const float* in, Dtype dtype, std::byte* out) {
  launch(narrow_kernel, shape_for(elements), stream, elements, in, dtype, out);
}

__global__ void widen_kernel(std::int64_t elements, const std::byte* in, Dtype dtype, float* out) {
  for (std::int64_t i = first_index(); i < elements; i += index_stride())
    out[i] = load_element(in, dtype, i);
}

void widen(Stream stream, std::int64_t elements, const std::byte* in, Dtype dtype, float* out) {
  launch(widen_kernel, shape_for(elements), stream, elements, in, dtype, out);
}

}  // namespace leeway::kernels::LEEWAY_DEVICE
