// The scalar reference of each operation, defined in the operation's own file kernels/<op>.cc. It
// says what the operation computes; the fast versions must give the same bits. Called from any
// thread. Arguments as in cpu_kernels.h.
#pragma once

#include "kernels/cpu_kernels.h"

namespace leeway::kernels::scalar {

bool scale_to_half(const float* in, std::size_t elements, float scale, Half* out);
void narrow(const float* in, std::size_t elements, Dtype dtype, std::byte* out);
void widen(const std::byte* in, std::size_t elements, Dtype dtype, float* out);
bool encode_bf16(const float* in, std::size_t elements, float scale, Bfloat16* out);
bool encode_blocks(Codec codec, const float* in, std::size_t elements, float scale, std::byte* out,
                   std::byte* scales);
double sum_of_squares(const float* in, std::size_t elements);
void update(const UpdatePlan* plans, std::size_t count);
// The parts that updates are made of, for one element.
float sum_gradients(const UpdatePlan& plan, std::size_t i);
void publish_element(const UpdatePlan& plan, std::size_t i, float w);
void lamb_moments(const UpdatePlan& plan, std::size_t begin, std::size_t end, double* weights,
                  double* changes);
void lamb_step(const UpdatePlan& plan, std::size_t begin, std::size_t end);
void bias_activation(std::int64_t rows, std::int64_t columns, const float* z, const Half* bias,
                     bool relu, Half* out);
void relu_backward(std::int64_t elements, const float* da, const Half* activation, Half* dz);
void bias_gradient(std::int64_t rows, std::int64_t columns, const Half* dz, float beta, float* db);
void softmax_cross_entropy(std::int64_t rows, std::int64_t classes, const Half* logits,
                           const std::int32_t* labels, float gradient_scale, float* loss_sum,
                           std::int32_t* correct, Half* dlogits, float* row);

}  // namespace leeway::kernels::scalar
