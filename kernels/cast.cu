// Conversions, an element a thread in grid strides. See kernels/cast.h; encode() of codec.cu scales
// to FP16.
#include "kernels/device_math.cuh"

namespace leeway::kernels::LEEWAY_DEVICE {

__global__ void convert_kernel(std::int64_t elements, const std::byte* in, Dtype from,
                               std::byte* out, Dtype to) {
  for (std::int64_t i = first_index(); i < elements; i += index_stride())
    store_element(out, to, i, load_element(in, from, i));
}

void convert(Stream stream, std::int64_t elements, const std::byte* in, Dtype from, std::byte* out,
             Dtype to) {
  launch(convert_kernel, shape_for(elements), stream, elements, in, from, out, to);
}

}  // namespace leeway::kernels::LEEWAY_DEVICE
