#include "transport/cuda_driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace leeway::transport {
namespace {

struct Loaded {
  CudaDriver driver;
  std::string problem;  // empty: the table is complete
};

Loaded load() {
  Loaded out;
  // Never closed: the driver's own threads run until the process ends.
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* said = dlerror();
    out.problem = fmt::format("no CUDA driver ({})", said != nullptr ? said : "libcuda.so.1");
    return out;
  }
  const auto find = [&](const char* name, auto& function, bool optional = false) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr && !optional && out.problem.empty())
      out.problem = fmt::format("the CUDA driver has no {}: it is too old", name);
  };
  CudaDriver& d = out.driver;
  find("cuInit", d.init);
  find("cuGetErrorString", d.error_string);
  find("cuDeviceGet", d.device);
  find("cuDeviceGetAttribute", d.device_attribute);
  find("cuDevicePrimaryCtxRetain", d.retain_primary);
  find("cuDevicePrimaryCtxRelease_v2", d.release_primary);
  find("cuCtxPushCurrent_v2", d.push_context);
  find("cuCtxPopCurrent_v2", d.pop_context);
  find("cuMemAlloc_v2", d.allocate);
  find("cuMemFree_v2", d.free);
  find("cuMemsetD8Async", d.fill);
  find("cuMemHostRegister_v2", d.pin);
  find("cuMemHostUnregister", d.unpin);
  find("cuMemcpyDtoHAsync_v2", d.to_host);
  find("cuMemcpyHtoDAsync_v2", d.to_device);
  find("cuStreamCreate", d.create_stream);
  find("cuStreamDestroy_v2", d.destroy_stream);
  find("cuStreamWaitEvent", d.stream_waits);
  find("cuStreamSynchronize", d.synchronize);
  find("cuLaunchHostFunc", d.call_host);
  find("cuEventCreate", d.create_event);
  find("cuEventRecord", d.record);
  find("cuEventDestroy_v2", d.destroy_event);
  find("cuPointerSetAttribute", d.set_pointer_attribute);
  find("cuMemGetHandleForAddressRange", d.range_handle, true);
  find("cuFlushGPUDirectRDMAWrites", d.flush_remote_writes, true);
  if (!out.problem.empty()) return out;
  if (const int error = d.init(0); error != 0) {
    const char* text = nullptr;
    d.error_string(error, &text);
    out.problem = fmt::format("the CUDA driver does not start: {}",
                              text != nullptr ? text : fmt::format("error {}", error).c_str());
  }
  return out;
}

}  // namespace

const CudaDriver* cuda_driver(std::string& why) {
  static const Loaded loaded = load();
  why = loaded.problem;
  return loaded.problem.empty() ? &loaded.driver : nullptr;
}

}  // namespace leeway::transport
