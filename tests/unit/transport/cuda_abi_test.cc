// The table of driver functions against NVIDIA's header: as many arguments, each as large, pointers
// where it has pointers; and the numbers. Built where there is a toolkit; it needs no driver.
#include <cuda.h>

#include <type_traits>

#include "transport/cuda_driver.h"

namespace leeway::transport {
namespace {

template <typename Ours, typename Theirs>
constexpr bool kAlike =
    sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs>;

template <typename Ours, typename Theirs>
struct Same;
template <typename R, typename... A, typename S, typename... B>
struct Same<R (*)(A...), S (*)(B...)> {
  static constexpr bool kValue = [] {
    if constexpr (sizeof...(A) == sizeof...(B)) return kAlike<R, S> && (kAlike<A, B> && ...);
    return false;
  }();
};

#define SAME(ours, theirs) \
  static_assert(Same<decltype(CudaDriver::ours), decltype(&::theirs)>::kValue, #theirs)
SAME(init, cuInit);
SAME(error_string, cuGetErrorString);
SAME(device, cuDeviceGet);
SAME(device_attribute, cuDeviceGetAttribute);
SAME(retain_primary, cuDevicePrimaryCtxRetain);
SAME(release_primary, cuDevicePrimaryCtxRelease);
SAME(push_context, cuCtxPushCurrent);
SAME(pop_context, cuCtxPopCurrent);
SAME(allocate, cuMemAlloc);
SAME(free, cuMemFree);
SAME(fill, cuMemsetD8Async);
SAME(pin, cuMemHostRegister);
SAME(unpin, cuMemHostUnregister);
SAME(to_host, cuMemcpyDtoHAsync);
SAME(to_device, cuMemcpyHtoDAsync);
SAME(create_stream, cuStreamCreate);
SAME(destroy_stream, cuStreamDestroy);
SAME(stream_waits, cuStreamWaitEvent);
SAME(synchronize, cuStreamSynchronize);
SAME(call_host, cuLaunchHostFunc);
SAME(create_event, cuEventCreate);
SAME(record, cuEventRecord);
SAME(destroy_event, cuEventDestroy);
SAME(set_pointer_attribute, cuPointerSetAttribute);
SAME(range_handle, cuMemGetHandleForAddressRange);
SAME(flush_remote_writes, cuFlushGPUDirectRDMAWrites);
#undef SAME

static_assert(cuda::kGpuDirectSupported == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED);
static_assert(cuda::kFlushWritesOptions ==
              CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
static_assert(cuda::kRemoteWritesOrdering == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
static_assert(cuda::kDmabufSupported == CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
static_assert(cuda::kFlushByHost == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST);
static_assert(cuda::kOrderedForOwner == CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER);
static_assert(cuda::kFlushCurrentContext == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX);
static_assert(cuda::kFlushToOwner == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
static_assert(cuda::kSyncMemops == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS);
static_assert(cuda::kDmabufHandle == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
static_assert(cuda::kNonBlockingStream == CU_STREAM_NON_BLOCKING);
static_assert(cuda::kEventWithoutTiming == CU_EVENT_DISABLE_TIMING);
static_assert(cuda::kPinnedForAll == CU_MEMHOSTREGISTER_PORTABLE);

}  // namespace
}  // namespace leeway::transport
