#include "kernels/scalar.h"

namespace leeway::kernels {

void scalar::relu_backward(std::int64_t elements, const float* da, const Half* activation,
                           Half* dz) {
  for (std::int64_t i = 0; i < elements; ++i)
    dz[i] = to_half(to_float(activation[i]) > 0.0f ? da[i] : 0.0f);
}

}  // namespace leeway::kernels
