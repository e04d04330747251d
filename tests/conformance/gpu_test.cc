// Memory of a GPU that goes through pinned memory of the host, on every fabric. There is no GPU:
// the driver is tests/unit/transport/fake_cuda.h. The direct way: rails_test.cc.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>

#include "tests/conformance/node.h"
#include "tests/unit/transport/fake_cuda.h"
#include "transport/gpu_buffer.h"

namespace leeway::conformance {
namespace {

using transport::Gpu;
using transport::GpuBuffer;
using transport::GpuPath;
using transport::testing::FakeCuda;

struct Program {
  explicit Program(FakeCuda& c) : cuda(c), stream(c.make_stream()) {}
  ~Program() { cuda.destroy_stream(stream); }
  // A kernel that gives each byte of [0, size) a value.
  void compute(std::byte* device, std::size_t size, unsigned char value) {
    cuda.run_on(stream, [=] { std::memset(FakeCuda::here(device), value, size); });
  }
  FakeCuda& cuda;
  void* stream;
};

bool all(std::span<const std::byte> bytes, unsigned char value) {
  return std::ranges::all_of(bytes, [&](std::byte b) { return b == std::byte{value}; });
}

}  // namespace

TEST_CASE("GPU memory staged: peers read what kernels wrote before, and kernels what peers wrote") {
  constexpr std::size_t kSize = 1 << 20;
  FakeCuda cuda;
  Program program(cuda);
  const auto gpu = value_or_throw(Gpu::open(cuda.driver(), 0, program.stream));
  Node worker, server;
  auto buffer = std::make_unique<GpuBuffer>(
      value_or_throw(GpuBuffer::make(gpu, *worker.endpoint, kSize, GpuPath::kStaged)));
  CHECK_FALSE(buffer->memory().on_device());
  CHECK(all({FakeCuda::here(buffer->device()), kSize}, 0));
  CHECK(cuda.allocated() == 1);
  CHECK(cuda.pinned() == 1);

  // The kernel has not run yet: nothing is ready, and nobody waited for it.
  cuda.hold(program.stream);
  program.compute(buffer->device(), kSize, 7);
  std::promise<void> ready;
  std::atomic<bool> early = true;
  const GpuBuffer::Range ranges[] = {{0, kSize / 2}, {kSize / 2, kSize / 2 - 1}};
  REQUIRE(buffer->publish(ranges, [&] {
    early = false;
    ready.set_value();
  }));
  CHECK(early);
  CHECK(all(buffer->memory().bytes(), 0));
  cuda.release(program.stream);
  ready.get_future().wait();
  CHECK(cuda.copied_out() == kSize - 1);

  const Peer to_worker = server.connect(worker);
  const RegisteredMemory here = server.memory(kSize);
  Outcome outcome = server.read(to_worker, {&here, 0, kSize}, at(buffer->memory()));
  REQUIRE_MESSAGE(outcome.status.has_value(), outcome.status.error().message);
  CHECK(all(here.bytes().first(kSize - 1), 7));
  CHECK(all(here.bytes().last(1), 0));  // it was not published

  std::memset(here.bytes().data(), 9, kSize);
  outcome = server.write(to_worker, {&here, 0, kSize}, at(buffer->memory()));
  REQUIRE_MESSAGE(outcome.status.has_value(), outcome.status.error().message);
  const GpuBuffer::Range part[] = {{4096, 8192}};
  REQUIRE(buffer->take_in(part));
  REQUIRE(gpu->before_program());
  std::vector<std::byte> seen(kSize);
  cuda.run_on(program.stream,
              [&] { std::memcpy(seen.data(), FakeCuda::here(buffer->device()), kSize); });
  cuda.wait_for(program.stream);
  CHECK(all(std::span(seen).first(4096), 7));
  CHECK(all(std::span(seen).subspan(4096, 8192), 9));
  CHECK(all(std::span(seen).subspan(4096 + 8192), 7));
  CHECK(cuda.copied_in() == 8192);
  CHECK(cuda.flushes() == 0);  // no NIC wrote into the device

  buffer.reset();
  CHECK(cuda.allocated() == 0);
  CHECK(cuda.pinned() == 0);
}

TEST_CASE("GPU memory staged: copies of what is ready overtake what is still computed") {
  constexpr std::size_t kPart = 128 << 10, kParts = 8;
  FakeCuda cuda;
  Program program(cuda);
  const auto gpu = value_or_throw(Gpu::open(cuda.driver(), 0, program.stream));
  Node worker, server;
  auto buffer =
      value_or_throw(GpuBuffer::make(gpu, *worker.endpoint, kPart * kParts, GpuPath::kStaged));
  const Peer to_worker = server.connect(worker);
  const RegisteredMemory here = server.memory(kPart * kParts);
  std::vector<std::promise<void>> ready(kParts);
  for (std::size_t i = 0; i < kParts; ++i) {
    if (i == kParts - 1) cuda.hold(program.stream);
    program.compute(buffer.device() + i * kPart, kPart, static_cast<unsigned char>(i + 1));
    const GpuBuffer::Range range[] = {{i * kPart, kPart}};
    REQUIRE(buffer.publish(range, [&, i] { ready[i].set_value(); }));
    if (i == kParts - 1) break;
    // The last one is held: the others are sent meanwhile.
    ready[i].get_future().wait();
    const Outcome outcome =
        server.read(to_worker, {&here, i * kPart, kPart}, at(buffer.memory(), i * kPart));
    REQUIRE(outcome.status.has_value());
    CHECK(all(here.bytes().subspan(i * kPart, kPart), static_cast<unsigned char>(i + 1)));
  }
  auto last = ready.back().get_future();
  CHECK(last.wait_for(std::chrono::milliseconds(0)) == std::future_status::timeout);
  cuda.release(program.stream);
  REQUIRE(gpu->synchronize());
  last.wait();
}

// What the tests above do on a driver that is none, on that of this machine where there is one.
TEST_CASE("GPU memory staged: on the device of this machine") {
  std::string why;
  const transport::CudaDriver* driver = transport::cuda_driver(why);
  int device = 0;
  if (driver == nullptr || driver->device(&device, 0) != 0) {
    MESSAGE("not tested: ", driver == nullptr ? why : "the driver has no device");
    return;
  }
  void *context = nullptr, *stream = nullptr;
  REQUIRE(driver->retain_primary(&context, device) == 0);
  REQUIRE(driver->push_context(context) == 0);
  REQUIRE(driver->create_stream(&stream, transport::cuda::kNonBlockingStream) == 0);
  constexpr std::size_t kPart = 1 << 20, kParts = 16;
  {
    const auto gpu = value_or_throw(Gpu::open(*driver, 0, stream));
    MESSAGE("dmabuf: ", gpu->exports_dmabuf(), ", GPUDirect RDMA: ", gpu->direct());
    Node worker, server;
    auto buffer =
        value_or_throw(GpuBuffer::make(gpu, *worker.endpoint, kPart * kParts, GpuPath::kStaged));
    const auto on_device = [&](std::size_t i) {
      return reinterpret_cast<transport::CudaDriver::Pointer>(buffer.device() + i * kPart);
    };
    const Peer to_worker = server.connect(worker);
    const RegisteredMemory here = server.memory(kPart * kParts);
    std::vector<std::promise<void>> ready(kParts);
    for (std::size_t i = 0; i < kParts; ++i) {
      REQUIRE(driver->fill(on_device(i), static_cast<unsigned char>(i + 1), kPart, stream) == 0);
      const GpuBuffer::Range range[] = {{i * kPart, kPart}};
      REQUIRE(buffer.publish(range, [&, i] { ready[i].set_value(); }));
    }
    for (std::size_t i = 0; i < kParts; ++i) {
      ready[i].get_future().wait();
      REQUIRE(server.read(to_worker, {&here, i * kPart, kPart}, at(buffer.memory(), i * kPart))
                  .status.has_value());
      CHECK(all(here.bytes().subspan(i * kPart, kPart), static_cast<unsigned char>(i + 1)));
    }
    REQUIRE(server.write(to_worker, {&here, 0, kPart * kParts}, at(buffer.memory()))
                .status.has_value());
    const GpuBuffer::Range everything[] = {{0, kPart * kParts}};
    REQUIRE(buffer.take_in(everything));
    REQUIRE(gpu->before_program());
    std::vector<std::byte> seen(kPart * kParts);
    const auto pinned = value_or_throw(gpu->pin(seen));
    REQUIRE(driver->to_host(seen.data(), on_device(0), seen.size(), stream) == 0);
    REQUIRE(driver->synchronize(stream) == 0);
    CHECK(std::ranges::equal(seen, here.bytes()));
    if (gpu->exports_dmabuf()) CHECK(value_or_throw(gpu->dmabuf(buffer.device(), 5000)).get() >= 0);
  }
  driver->destroy_stream(stream);
  driver->pop_context(&context);
  driver->release_primary(device);
}

TEST_CASE("GPU memory: too little of it, and a device that is not there, are one line") {
  FakeCuda cuda({.memory = 1 << 20});
  Program program(cuda);
  const auto gpu = value_or_throw(Gpu::open(cuda.driver(), 0, program.stream));
  Node worker;
  const auto none = GpuBuffer::make(gpu, *worker.endpoint, 5 << 20, GpuPath::kStaged);
  REQUIRE_FALSE(none.has_value());
  CHECK(none.error().code == Code::kResourceExhausted);
  CHECK(none.error().message == "GPU 0: 5242880 bytes of its memory: out of memory");
  // No rail here takes it.
  const auto direct = GpuBuffer::make(gpu, *worker.endpoint, 4096, GpuPath::kDmabuf);
  REQUIRE_FALSE(direct.has_value());
  CHECK(direct.error().code == Code::kUnsupported);
  CHECK(cuda.open_to_nics() == 1);
  CHECK(cuda.allocated() == 0);
  CHECK_FALSE(Gpu::open(cuda.driver(), 1, program.stream).has_value());
}

}  // namespace leeway::conformance
