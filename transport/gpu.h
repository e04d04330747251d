// A GPU as seen by whoever moves bytes: its memory, memory of the host that it may copy to and from
// at full speed, and two lines of copies beside what the program computes, one each way.
//
// Any thread: each call makes the device's primary context, which the CUDA run-time library uses as
// well, current for its own time. Errors are kResourceExhausted (memory) or kInternal, with the
// driver's text. Lives until what it allocated and pinned is gone.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "common/result.h"
#include "transport/cuda_driver.h"
#include "transport/file_descriptor.h"

namespace leeway::transport {

class Gpu : public std::enable_shared_from_this<Gpu> {
 public:
  // `stream`: where the program computes (a cudaStream_t); it outlives the Gpu.
  static Result<std::shared_ptr<Gpu>> open(const CudaDriver& driver, int ordinal, void* stream);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  int ordinal() const noexcept { return ordinal_; }
  // The driver gives its memory away as a dmabuf; NICs may reach it at all.
  bool exports_dmabuf() const noexcept { return exports_dmabuf_; }
  bool direct() const noexcept { return direct_; }

  // Zeroed, whole pages of 64 KiB. Freed by the last owner, on any thread.
  Result<std::shared_ptr<std::byte>> allocate(std::size_t bytes);
  // Before NICs reach that memory: the driver's own copies to it end when they say so.
  Status open_to_nics(std::byte* allocated);
  // Of `allocated` memory, from its beginning.
  Result<FileDescriptor> dmabuf(std::byte* allocated, std::size_t bytes);

  // While the owner lives the GPU copies to and from these bytes without the CPU.
  Result<std::shared_ptr<void>> pin(std::span<std::byte> bytes);

  // [the program's thread] Copies to the host from now on wait for all that the program's stream
  // has by now.
  Status after_program();
  Status to_host(std::byte* host, const std::byte* device, std::size_t bytes);
  // Runs `task` on a thread of the driver's when the copies to the host so far are done. It may not
  // call the driver.
  Status then(std::function<void()> task);
  Status to_device(std::byte* device, const std::byte* host, std::size_t bytes);
  // [the program's thread] What the program's stream gets from now on waits for the copies to the
  // device so far, and sees what NICs wrote into the device's memory.
  Status before_program();
  // [the program's thread] Waits until the program's stream and the copies to the host are done.
  Status synchronize();

 private:
  class Current;
  Gpu(const CudaDriver& driver, int ordinal, void* stream)
      : driver_(driver), ordinal_(ordinal), program_(stream) {}
  Status start();
  Status check(int error, const char* what) const;

  const CudaDriver& driver_;
  const int ordinal_;
  const CudaDriver::Stream program_;
  int device_ = 0;
  bool exports_dmabuf_ = false, direct_ = false, flush_ = false;
  CudaDriver::Context context_ = nullptr;
  CudaDriver::Stream out_ = nullptr, in_ = nullptr;
  CudaDriver::Event computed_ = nullptr, arrived_ = nullptr;
};

}  // namespace leeway::transport
