// The .cu sources once more, compiled for the host.
#include "kernels/emulation/emulated_kernels.h"

#include "kernels/device_kernels.cu"
