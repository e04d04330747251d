// Memory of a GPU and peers: which way its bytes go, both ways, and what is asked of libfabric and
// of the driver. There is no GPU: the driver is tests/unit/transport/fake_cuda.h.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <numeric>

#include "tests/unit/transport/fake_cuda.h"
#include "tests/unit/transport/libfabric_tcp.h"
#include "transport/fabric_domain.h"
#include "transport/gpu_buffer.h"
#include "transport/host_memory.h"

namespace leeway::transport {
namespace {

using testing::FakeCuda;

bool has(const std::string& text, std::string_view part) {
  CAPTURE(text);
  CAPTURE(part);
  return text.find(part) != std::string::npos;
}

// A machine that has all that the direct way needs.
GpuPathFacts everything() {
  return {.rails = {{"efa", true, true}, {"leeway-shm", false, false}},
          .gpu_direct = true,
          .exports_dmabuf = true,
          .registers_dmabuf = true,
          .peer_module = "nvidia_peermem"};
}

struct Program {
  explicit Program(FakeCuda& c) : cuda(c), stream(c.make_stream()) {}
  ~Program() { cuda.destroy_stream(stream); }
  FakeCuda& cuda;
  void* stream;
};

}  // namespace

TEST_CASE("GPU path: direct where rails, driver and kernel can; else staged, and why") {
  const auto text = [](auto change, GpuPath expected) {
    GpuPathFacts facts = everything();
    change(facts);
    const GpuPathChoice choice = choose_gpu_path(facts);
    CHECK(choice.path == expected);
    return choice.text;
  };
  using F = GpuPathFacts;
  CHECK(has(text([](F&) {}, GpuPath::kDmabuf), "registered with the NICs as a dmabuf"));
  CHECK(has(text([](F& f) { f.registers_dmabuf = false; }, GpuPath::kPeerModule),
            "by address (FI_HMEM_CUDA, nvidia_peermem)"));
  CHECK(has(text([](F& f) { f.exports_dmabuf = false; }, GpuPath::kPeerModule), "nvidia_peermem"));
  const auto no_module = [](F& f) {
    f.exports_dmabuf = false;
    f.peer_module = "";
  };
  CHECK(has(text(no_module, GpuPath::kStaged), "the driver exports no dmabuf, and no nvidia_peer"));
  const auto old_library = [](F& f) {
    f.registers_dmabuf = false;
    f.peer_module = "";
  };
  CHECK(has(text(old_library, GpuPath::kStaged), "registers no dmabuf (1.20 does)"));
  CHECK(has(text([](F& f) { f.gpu_direct = false; }, GpuPath::kStaged), "no GPUDirect RDMA"));
  CHECK(has(text([](F& f) { f.checksums = true; }, GpuPath::kStaged), "with checksums"));
  CHECK(has(text(
                [](F& f) {
                  f.rails.push_back({"leeway-tcp", true, false});
                },
                GpuPath::kStaged),
            "provider leeway-tcp offers no FI_HMEM"));
  CHECK(has(text([](F& f) { f.rails.erase(f.rails.begin()); }, GpuPath::kStaged),
            "peers of one host"));
}

TEST_CASE("GPU path: what it depends on is found out here") {
  FakeCuda cuda;
  Program program(cuda);
  const auto gpu = value_or_throw(Gpu::open(cuda.driver(), 0, program.stream));
  const auto endpoint = Endpoint::open({.fabric = "tcp", .device_memory = true});
  const GpuPathFacts facts = gpu_path_facts(endpoint->info(), *gpu, true);
  REQUIRE(facts.rails.size() == 1);
  CHECK(facts.rails[0].fabric);
  CHECK_FALSE(facts.rails[0].device_memory);  // sockets are not asked
  CHECK(facts.gpu_direct);
  CHECK(facts.exports_dmabuf);
  CHECK_FALSE(facts.registers_dmabuf);
  CHECK(facts.checksums);
  const auto shm = Endpoint::open({.fabric = "shm"});
  CHECK_FALSE(gpu_path_facts(shm->info(), *gpu, false).rails[0].fabric);
}

TEST_CASE("GPU memory: what NICs wrote is flushed where the device does not order it") {
  FakeCuda cuda({.ordered = false});
  Program program(cuda);
  const auto gpu = value_or_throw(Gpu::open(cuda.driver(), 0, program.stream));
  REQUIRE(gpu->before_program());
  CHECK(cuda.flushes() == 1);
}

namespace {

// What the last fi_mr_regattr() was asked.
struct Asked {
  fi_mr_attr attributes{};
  iovec range{};
  std::uint64_t flags = 0;
  int error = 0;  // to answer
  fi_ops_mr* real = nullptr;
} asked;

int stand_in(fid* domain, const fi_mr_attr* attributes, std::uint64_t flags,
             fid_mr** registration) {
  asked.attributes = *attributes;
  asked.flags = flags;
#ifdef FI_MR_DMABUF
  if ((flags & FI_MR_DMABUF) == 0)
#endif
    asked.range = *attributes->mr_iov;
  static std::byte host[4096];
  return asked.error != 0 ? asked.error
                          : asked.real->reg(domain, host, sizeof host, attributes->access, 0,
                                            attributes->requested_key, 0, registration, nullptr);
}

}  // namespace

TEST_CASE("GPU memory is registered as FI_HMEM_CUDA of its device, the host's as the host's") {
  const auto domain = std::make_shared<FabricDomain>(
      choose_provider(testing::kLibfabricTcp, {.address = "127.0.0.1"}));
  fi_ops_mr operations = *domain->domain->mr;
  asked.real = std::exchange(domain->domain->mr, &operations);
  operations.regattr = stand_in;
  std::byte* const device = FakeCuda::away(std::bit_cast<void*>(std::uintptr_t{0x10000}));
  ForeignMemory memory{.data = device, .size = 5000, .device = DevicePlace{.ordinal = 3}};
  {
    const auto registration =
        value_or_throw(FabricRegistration::make(domain, memory, Access::kPeers));
    CHECK(asked.attributes.iface == FI_HMEM_CUDA);
    CHECK(asked.attributes.device.cuda == 3);
    CHECK(asked.range.iov_base == device);
    CHECK(asked.range.iov_len == 5000);
    CHECK(asked.attributes.iov_count == 1);
    CHECK((asked.attributes.access & (FI_REMOTE_READ | FI_REMOTE_WRITE)) ==
          (FI_REMOTE_READ | FI_REMOTE_WRITE));
    CHECK(asked.flags == 0);
    CHECK(registration->window().address == reinterpret_cast<std::uintptr_t>(device));
  }
#ifdef FI_MR_DMABUF
  memory.device->dmabuf = 42;
  {
    const auto registration =
        value_or_throw(FabricRegistration::make(domain, memory, Access::kPeers));
    CHECK(asked.flags == FI_MR_DMABUF);
    CHECK(asked.attributes.iface == FI_HMEM_CUDA);
  }
#endif
  asked.error = -FI_EFAULT;
  const auto refused = FabricRegistration::make(domain, memory, Access::kPeers);
  asked.error = 0;
  REQUIRE_FALSE(refused.has_value());
  CHECK(has(refused.error().message, "registering 5000 bytes of GPU 3"));
  CHECK(has(refused.error().message, "leeway-run doctor"));

  const auto host = value_or_throw(HostMemory::make(4096, HostMemory::Kind::kPrivate));
  const auto registration =
      value_or_throw(FabricRegistration::make(domain, host.view(), Access::kOwn));
  CHECK(asked.attributes.iface == FI_HMEM_SYSTEM);
  CHECK((asked.attributes.access & (FI_REMOTE_READ | FI_REMOTE_WRITE)) == 0);
}

TEST_CASE("the CUDA driver is loaded when it is there; else the reason is in words") {
  std::string why;
  const CudaDriver* driver = cuda_driver(why);
  CAPTURE(why);
  if (driver != nullptr) {
    CHECK(why.empty());
    const char* text = nullptr;
    CHECK(driver->error_string(2, &text) == 0);
    CHECK(has(text, "memory"));
  } else {
    CHECK(has(why, "CUDA driver"));
    CHECK(why.find('\n') == std::string::npos);
  }
}

}  // namespace leeway::transport
