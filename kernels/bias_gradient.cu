// Column sums: a thread a column, rows in order (a tree would be faster for few columns and many
// rows, but the contract is the order). Neighbouring threads read neighbouring columns.
#include "kernels/device_math.cuh"

namespace leeway::kernels::LEEWAY_DEVICE {

__global__ void bias_gradient_kernel(std::int64_t rows, std::int64_t columns, const Half* dz,
                                     float beta, float* db) {
  for (std::int64_t column = first_index(); column < columns; column += index_stride()) {
    float sum = 0.0f;
#pragma unroll 8
    for (std::int64_t row = 0; row < rows; ++row)
      sum = sum + half_to_float(dz[row * columns + column]);
    db[column] = beta == 0.0f ? sum : sum + beta * db[column];
  }
}

void bias_gradient(Stream stream, std::int64_t rows, std::int64_t columns, const Half* dz,
                   float beta, float* db) {
  // Small blocks: a layer's few columns still spread over several multiprocessors.
  launch(bias_gradient_kernel, shape_for(columns, kWarpSize), stream, rows, columns, dz, beta, db);
}

}  // namespace leeway::kernels::LEEWAY_DEVICE
