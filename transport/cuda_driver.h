// The functions of the CUDA driver that moving bytes to and from GPUs needs, as one table: loaded
// when first asked for, so that a program runs and builds without a driver or a toolkit, and
// replaceable, so that tests bring a driver of their own.
//
// Names, arguments and numbers are those of NVIDIA's cuda.h (the driver's ABI), with its handles as
// void* and its error codes as int, 0 = success. The table lives until the process ends; its
// functions may be called from any thread.
#pragma once

#include <cstddef>
#include <string>

namespace leeway::transport {

struct CudaDriver {
  using Pointer = unsigned long long;  // CUdeviceptr
  using Stream = void*;
  using Event = void*;
  using Context = void*;

  int (*init)(unsigned flags) = nullptr;
  int (*error_string)(int error, const char** text) = nullptr;
  int (*device)(int* device, int ordinal) = nullptr;
  int (*device_attribute)(int* value, int attribute, int device) = nullptr;
  int (*retain_primary)(Context* context, int device) = nullptr;
  int (*release_primary)(int device) = nullptr;
  int (*push_context)(Context context) = nullptr;
  int (*pop_context)(Context* context) = nullptr;
  int (*allocate)(Pointer* memory, std::size_t bytes) = nullptr;
  int (*free)(Pointer memory) = nullptr;
  int (*fill)(Pointer memory, unsigned char value, std::size_t bytes, Stream stream) = nullptr;
  int (*pin)(void* memory, std::size_t bytes, unsigned flags) = nullptr;
  int (*unpin)(void* memory) = nullptr;
  int (*to_host)(void* host, Pointer device, std::size_t bytes, Stream stream) = nullptr;
  int (*to_device)(Pointer device, const void* host, std::size_t bytes, Stream stream) = nullptr;
  int (*create_stream)(Stream* stream, unsigned flags) = nullptr;
  int (*destroy_stream)(Stream stream) = nullptr;
  int (*stream_waits)(Stream stream, Event event, unsigned flags) = nullptr;
  int (*synchronize)(Stream stream) = nullptr;
  int (*call_host)(Stream stream, void (*function)(void*), void* argument) = nullptr;
  int (*create_event)(Event* event, unsigned flags) = nullptr;
  int (*record)(Event event, Stream stream) = nullptr;
  int (*destroy_event)(Event event) = nullptr;
  int (*set_pointer_attribute)(const void* value, int attribute, Pointer memory) = nullptr;
  // Null in drivers before 11.7 and 11.3.
  int (*range_handle)(void* handle, Pointer memory, std::size_t bytes, int type,
                      unsigned long long flags) = nullptr;
  int (*flush_remote_writes)(int target, int scope) = nullptr;
};

// Of cuda.h.
namespace cuda {
inline constexpr int kGpuDirectSupported = 116;     // CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_...
inline constexpr int kFlushWritesOptions = 117;     // ..._FLUSH_WRITES_OPTIONS
inline constexpr int kRemoteWritesOrdering = 118;   // ..._WRITES_ORDERING
inline constexpr int kDmabufSupported = 124;        // CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED
inline constexpr int kFlushByHost = 1;              // CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST
inline constexpr int kOrderedForOwner = 100;        // CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER
inline constexpr int kFlushCurrentContext = 0;      // CU_FLUSH_..._TARGET_CURRENT_CTX
inline constexpr int kFlushToOwner = 100;           // CU_FLUSH_..._TO_OWNER
inline constexpr int kSyncMemops = 6;               // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
inline constexpr int kDmabufHandle = 1;             // CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
inline constexpr unsigned kNonBlockingStream = 1;   // CU_STREAM_NON_BLOCKING
inline constexpr unsigned kEventWithoutTiming = 2;  // CU_EVENT_DISABLE_TIMING
inline constexpr unsigned kPinnedForAll = 1;        // CU_MEMHOSTREGISTER_PORTABLE
}  // namespace cuda

// The driver of this machine, initialised; or null, and why.
const CudaDriver* cuda_driver(std::string& why);

}  // namespace leeway::transport
