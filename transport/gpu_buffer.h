// Memory of a GPU that peers read and write: registered with the NICs, or with an image in pinned
// memory of the host that is registered in its place. Whoever uses it does the same in both cases.
//
// publish() from the program's thread, take_in() from one thread at a time, the rest from any. The
// endpoint outlives it. Its destructor takes the memory away from peers first.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "transport/endpoint.h"
#include "transport/gpu.h"
#include "transport/gpu_path.h"

namespace leeway::transport {

class GpuBuffer {
 public:
  struct Range {
    std::size_t offset = 0, size = 0;  // bytes
  };

  // Zeroed. kResourceExhausted: bytes, and what to do.
  static Result<GpuBuffer> make(std::shared_ptr<Gpu> gpu, Endpoint& endpoint, std::size_t bytes,
                                GpuPath path);

  std::byte* device() const noexcept { return device_.get(); }
  // What peers are told of.
  const RegisteredMemory& memory() const noexcept { return memory_; }

  // What the program's stream has by now is done to these bytes first; then peers may read them,
  // and `ready` runs, on a thread of the driver's, which waits for it. Until then, and while peers
  // read them, the program leaves them alone.
  Status publish(std::span<const Range> ranges, std::function<void()> ready);
  // Peers have written these bytes: what the program's stream gets after Gpu::before_program() sees
  // them. Until then the program leaves them alone.
  Status take_in(std::span<const Range> ranges);

 private:
  std::shared_ptr<Gpu> gpu_;
  std::shared_ptr<std::byte> device_;
  FileDescriptor dmabuf_;
  RegisteredMemory memory_;
  std::shared_ptr<void> pinned_;  // memory_, when it is an image
};

// What the choice of a path depends on, as it is here.
GpuPathFacts gpu_path_facts(const EndpointInfo& info, const Gpu& gpu, bool checksums);

}  // namespace leeway::transport
