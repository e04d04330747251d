#include "kernels/scalar.h"

namespace leeway::kernels {

void scalar::bias_gradient(std::int64_t rows, std::int64_t columns, const Half* dz, float beta,
                           float* db) {
  for (std::int64_t column = 0; column < columns; ++column) {
    float sum = 0.0f;
    for (std::int64_t row = 0; row < rows; ++row) sum += to_float(dz[row * columns + column]);
    db[column] = beta == 0.0f ? sum : sum + beta * db[column];
  }
}

}  // namespace leeway::kernels
