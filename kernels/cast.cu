// Conversions, an element a thread in grid strides. See kernels/cast.h.
#include "kernels/device_math.cuh"

namespace leeway::kernels::LEEWAY_DEVICE {

__global__ void scale_to_half_kernel(std::int64_t elements, const float* in, float scale, Half* out,
                                     std::int32_t* not_finite) {
  bool finite = true;
  for (std::int64_t i = first_index(); i < elements; i += index_stride()) {
    out[i] = float_to_half(in[i] * scale);
    finite = finite && (out[i].bits & 0x7C00u) != 0x7C00u;
  }
  // All that write, write the same.
  if (!finite) *not_finite = 1;
}

void scale_to_half(Stream stream, std::int64_t elements, const float* in, float scale, Half* out,
                   std::int32_t* not_finite) {
  launch(scale_to_half_kernel, shape_for(elements), stream, elements, in, scale, out, not_finite);
}

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
