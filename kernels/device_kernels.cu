// All CUDA kernels as one translation unit: nvcc's start-up and front end cost several seconds a
// file, whatever the file holds.
#include "kernels/bias_activation.cu"
#include "kernels/bias_gradient.cu"
#include "kernels/cast.cu"
#include "kernels/codec.cu"
#include "kernels/optimizer.cu"
#include "kernels/relu_backward.cu"
#include "kernels/softmax_cross_entropy.cu"
#include "kernels/sum_of_squares.cu"
#include "kernels/top_k.cu"
#include "kernels/weighted_sum.cu"

namespace leeway::kernels::LEEWAY_DEVICE {

const DeviceKernels& device_kernels() {
  static const DeviceKernels table{
      update,
      encode,
      top_k_scratch_bytes,
      encode_top_k,
      weighted_sum,
      block_squares,
      convert,
      bias_activation,
      relu_backward,
      bias_gradient,
      softmax_cross_entropy,
  };
  return table;
}

}  // namespace leeway::kernels::LEEWAY_DEVICE
