#include "transport/gpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace leeway::transport {
namespace {

// What a dmabuf is made of, and what a NIC maps.
constexpr std::size_t kDevicePage = std::size_t{64} << 10;

CudaDriver::Pointer pointer(const std::byte* memory) {
  return reinterpret_cast<CudaDriver::Pointer>(memory);
}

std::size_t whole_pages(std::size_t bytes) {
  return std::max<std::size_t>(1, (bytes + kDevicePage - 1) / kDevicePage) * kDevicePage;
}

}  // namespace

// The device's context, current while this lives.
class Gpu::Current {
 public:
  explicit Current(const Gpu& gpu)
      : gpu_(gpu), pushed_(gpu.driver_.push_context(gpu.context_) == 0) {}
  ~Current() {
    CudaDriver::Context was = nullptr;
    if (pushed_) gpu_.driver_.pop_context(&was);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const Gpu& gpu_;
  const bool pushed_;
};

Status Gpu::check(int error, const char* what) const {
  if (error == 0) return {};
  constexpr int kOutOfMemory = 2;  // CUDA_ERROR_OUT_OF_MEMORY
  const char* text = nullptr;
  driver_.error_string(error, &text);
  return fail(error == kOutOfMemory ? Code::kResourceExhausted : Code::kInternal,
              fmt::format("GPU {}: {}: {}", ordinal_, what,
                          text != nullptr ? text : fmt::format("error {}", error)));
}

Result<std::shared_ptr<Gpu>> Gpu::open(const CudaDriver& driver, int ordinal, void* stream) {
  std::shared_ptr<Gpu> gpu(new Gpu(driver, ordinal, stream));
  if (auto started = gpu->start(); !started) return tl::unexpected(std::move(started).error());
  return gpu;
}

Status Gpu::start() {
  if (auto s = check(driver_.device(&device_, ordinal_), "the device"); !s) return s;
  const auto attribute = [&](int which) {
    int value = 0;
    return driver_.device_attribute(&value, which, device_) == 0 ? value : 0;
  };
  direct_ = attribute(cuda::kGpuDirectSupported) != 0;
  exports_dmabuf_ = driver_.range_handle != nullptr && attribute(cuda::kDmabufSupported) != 0;
  flush_ = driver_.flush_remote_writes != nullptr &&
           (attribute(cuda::kFlushWritesOptions) & cuda::kFlushByHost) != 0 &&
           attribute(cuda::kRemoteWritesOrdering) < cuda::kOrderedForOwner;
  if (auto s = check(driver_.retain_primary(&context_, device_), "its context"); !s) return s;
  const Current current(*this);
  for (CudaDriver::Stream* stream : {&out_, &in_})
    if (auto s = check(driver_.create_stream(stream, cuda::kNonBlockingStream), "a stream"); !s)
      return s;
  for (CudaDriver::Event* event : {&computed_, &arrived_})
    if (auto s = check(driver_.create_event(event, cuda::kEventWithoutTiming), "an event"); !s)
      return s;
  return {};
}

Gpu::~Gpu() {
  if (context_ == nullptr) return;
  {
    const Current current(*this);
    for (const CudaDriver::Stream stream : {out_, in_}) {
      if (stream == nullptr) continue;
      driver_.synchronize(stream);
      driver_.destroy_stream(stream);
    }
    for (const CudaDriver::Event event : {computed_, arrived_})
      if (event != nullptr) driver_.destroy_event(event);
  }
  driver_.release_primary(device_);
}

Result<std::shared_ptr<std::byte>> Gpu::allocate(std::size_t bytes) {
  const Current current(*this);
  CudaDriver::Pointer memory = 0;
  const std::size_t size = whole_pages(bytes);
  if (auto s = check(driver_.allocate(&memory, size),
                     fmt::format("{} bytes of its memory", bytes).c_str());
      !s)
    return tl::unexpected(std::move(s).error());
  std::shared_ptr<std::byte> owner(std::bit_cast<std::byte*>(memory),
                                   [self = shared_from_this()](std::byte* data) {
                                     const Current inner(*self);
                                     self->driver_.free(pointer(data));
                                   });
  Status zeroed = check(driver_.fill(memory, 0, size, in_), "zeroing");
  if (zeroed) zeroed = check(driver_.synchronize(in_), "zeroing");
  if (!zeroed) return tl::unexpected(std::move(zeroed).error());
  return owner;
}

Status Gpu::open_to_nics(std::byte* allocated) {
  const Current current(*this);
  const unsigned yes = 1;
  return check(driver_.set_pointer_attribute(&yes, cuda::kSyncMemops, pointer(allocated)),
               "SYNC_MEMOPS of its memory");
}

Result<FileDescriptor> Gpu::dmabuf(std::byte* allocated, std::size_t bytes) {
  const Current current(*this);
  int descriptor = -1;
  if (auto s = check(driver_.range_handle(&descriptor, pointer(allocated), whole_pages(bytes),
                                          cuda::kDmabufHandle, 0),
                     "a dmabuf of its memory");
      !s)
    return tl::unexpected(std::move(s).error());
  return FileDescriptor(descriptor);
}

Result<std::shared_ptr<void>> Gpu::pin(std::span<std::byte> bytes) {
  const Current current(*this);
  if (auto s = check(driver_.pin(bytes.data(), bytes.size(), cuda::kPinnedForAll),
                     fmt::format("pinning {} bytes of the host's memory", bytes.size()).c_str());
      !s)
    return tl::unexpected(std::move(s).error());
  return std::shared_ptr<void>(bytes.data(), [self = shared_from_this()](void* data) {
    const Current inner(*self);
    self->driver_.unpin(data);
  });
}

Status Gpu::after_program() {
  const Current current(*this);
  if (auto s = check(driver_.record(computed_, program_), "an event"); !s) return s;
  return check(driver_.stream_waits(out_, computed_, 0), "waiting for an event");
}

Status Gpu::to_host(std::byte* host, const std::byte* device, std::size_t bytes) {
  if (bytes == 0) return {};
  const Current current(*this);
  return check(driver_.to_host(host, pointer(device), bytes, out_), "a copy to the host");
}

Status Gpu::then(std::function<void()> task) {
  const Current current(*this);
  auto kept = std::make_unique<std::function<void()>>(std::move(task));
  const auto run = [](void* argument) {
    const std::unique_ptr<std::function<void()>> mine(
        static_cast<std::function<void()>*>(argument));
    (*mine)();
  };
  if (auto s = check(driver_.call_host(out_, run, kept.get()), "a call of the host"); !s) return s;
  static_cast<void>(kept.release());  // run() has it now
  return {};
}

Status Gpu::to_device(std::byte* device, const std::byte* host, std::size_t bytes) {
  if (bytes == 0) return {};
  const Current current(*this);
  return check(driver_.to_device(pointer(device), host, bytes, in_), "a copy to the device");
}

Status Gpu::before_program() {
  const Current current(*this);
  if (flush_)
    if (auto s = check(driver_.flush_remote_writes(cuda::kFlushCurrentContext, cuda::kFlushToOwner),
                       "flushing what NICs wrote");
        !s)
      return s;
  if (auto s = check(driver_.record(arrived_, in_), "an event"); !s) return s;
  return check(driver_.stream_waits(program_, arrived_, 0), "waiting for an event");
}

Status Gpu::synchronize() {
  const Current current(*this);
  if (auto s = check(driver_.synchronize(program_), "the program's stream"); !s) return s;
  return check(driver_.synchronize(out_), "the copies to the host");
}

}  // namespace leeway::transport
