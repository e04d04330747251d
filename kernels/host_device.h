// Functions that the CUDA kernels share with the CPU.
#pragma once

#ifdef __CUDACC__
#define LEEWAY_HOST_DEVICE __host__ __device__
#else
#define LEEWAY_HOST_DEVICE
#endif
