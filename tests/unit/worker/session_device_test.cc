// A session whose weights and gradients are in the memory of a GPU that is none.
#include <doctest/doctest.h>

#include <limits>
#include <string>

#include "common/codec.h"
#include "tests/unit/worker/session_job.h"

namespace leeway::worker {
namespace {

using testing::contains;
using testing::error_of;
using testing::FakeServer;
using testing::floats;
using testing::Floats;
using testing::GpuJob;
using testing::Job;

}  // namespace

TEST_CASE("GPU: a job whose gradients and weights are in device memory, staged") {
  GpuJob gpu;
  auto session = gpu.start();
  CHECK(session->on_device());
  REQUIRE(session->begin_step());
  CHECK(gpu.weights(*session, gpu.job.a, 6) == Floats{1, 2, 3, 4, 5, 6});
  CHECK(gpu.weights(*session, gpu.job.b, 3) == Floats{7, 8, 9});
  session->push(gpu.job.none, DeviceGradient(nullptr, 0));
  gpu.push(*session, gpu.job.b, 3, 4);  // 0.5 times the scale
  gpu.push(*session, gpu.job.a, 6, 4);
  CHECK_FALSE(session->commit({.samples = 32}).skipped);
  gpu.step(*session, 0.25f);
  gpu.step(*session, 0.25f);
  session->pull_final();
  CHECK(gpu.weights(*session, gpu.job.a, 6) == Floats{0, 1, 2, 3, 4, 5});
  CHECK(gpu.weights(*session, gpu.job.b, 3) == Floats{6, 7, 8});
  session->finish({});
  CHECK(gpu.job.scheduler.finished()->bytes_pushed == 9 * 4 + 3 * 9 * 2);
}

TEST_CASE("GPU: gradients travel in the job's codec, as many bytes as it takes") {
  for (const NamedCodec& codec : kGradientCodecs) {
    if (codec.codec == Codec::kTopK) continue;  // it sends a part: below
    CAPTURE(codec.name);
    GpuJob gpu;
    gpu.job.scheduler.settings["gradient_codec"] = std::string(codec.name);
    auto session = gpu.start();
    gpu.step(*session, 0.5f);
    gpu.step(*session, -1.5f);
    session->pull_final();
    CHECK(gpu.weights(*session, gpu.job.a, 6) == Floats{2, 3, 4, 5, 6, 7});
    CHECK(gpu.weights(*session, gpu.job.b, 3) == Floats{8, 9, 10});
    session->finish({});
    CHECK(gpu.job.scheduler.finished()->bytes_pushed ==
          static_cast<std::int64_t>(9 * 4 + 2 * 3 * GradientCodec{codec.codec}.bytes(3)));
  }
}

TEST_CASE("GPU: topk sends the first of equals and keeps the rest, also over a skipped step") {
  GpuJob gpu;
  gpu.job.scheduler.settings["gradient_codec"] = "topk";  // one of a few elements
  auto session = gpu.start();
  gpu.step(*session, 0.5f);  // of a partition of a, 4 and 2 elements, and of b, sends the first
  const StepResult skipped = gpu.step(*session, std::numeric_limits<float>::infinity());
  CHECK(skipped.skipped);
  CHECK(skipped.loss_scale == 4);
  gpu.step(*session, 0.5f);  // the others have 1 by now: sends the second
  session->pull_final();
  CHECK(gpu.weights(*session, gpu.job.a, 6) == Floats{0.5, 1, 3, 4, 4.5, 5});
  CHECK(gpu.weights(*session, gpu.job.b, 3) == Floats{6.5, 7, 9});
  session->finish({});
}

TEST_CASE("GPU: topk that finds no room for its residual says so in one line") {
  GpuJob gpu;
  gpu.job.scheduler.settings["gradient_codec"] = "topk";
  gpu.backend.refuse_beyond(64);
  CHECK(contains(error_of([&] { gpu.start(); }),
                 "gradient_codec = topk keeps 8 bytes a parameter on fake GPU, here 512 bytes: no "
                 "memory; choose another codec"));
}

TEST_CASE("GPU: payloads with checksums, as the host sees them") {
  GpuJob gpu;
  gpu.job.scheduler.settings["checksum"] = "crc32c";
  auto session = gpu.start();
  gpu.step(*session, 0.5f);
  session->pull_final();
  CHECK(gpu.weights(*session, gpu.job.b, 3) == Floats{6.5, 7.5, 8.5});
  session->finish({});
  CHECK(gpu.job.servers[0].checksums() + gpu.job.servers[1].checksums() == 6);
}

TEST_CASE("GPU: of new weights, of any type, what changed alone is copied to the device") {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBf16}) {
    CAPTURE(to_string(dtype));
    GpuJob gpu(dtype);
    auto session = gpu.start();
    gpu.step(*session, 0.5f);
    REQUIRE(session->begin_step());
    CHECK(gpu.weights(*session, gpu.job.a, 6) == Floats{0.5, 1.5, 2.5, 3.5, 4.5, 5.5});
    CHECK(gpu.weights(*session, gpu.job.b, 3) == Floats{6.5, 7.5, 8.5});
    const std::size_t before = gpu.cuda.copied_in();
    // Somebody else's step, in one partition; this one is skipped.
    gpu.job.servers[0].change(PartitionId(2), 1);
    const float infinity = std::numeric_limits<float>::infinity();
    gpu.push(*session, gpu.job.a, 6, infinity);
    gpu.push(*session, gpu.job.b, 3, infinity);
    CHECK(session->commit({}).skipped);
    REQUIRE(session->begin_step());
    CHECK(gpu.weights(*session, gpu.job.a, 6) == Floats{0.5, 1.5, 2.5, 3.5, 4.5, 5.5});
    CHECK(gpu.weights(*session, gpu.job.b, 3) == Floats{7.5, 8.5, 9.5});
    CHECK(gpu.cuda.copied_in() - before == 3 * size_of(dtype));
  }
}

TEST_CASE("GPU: a gradient that is not finite is found on the device, and the step is skipped") {
  GpuJob gpu;
  auto session = gpu.start();
  CHECK_FALSE(gpu.step(*session, 0.5f).skipped);
  const StepResult skipped = gpu.step(*session, 1e30f);
  CHECK(skipped.skipped);
  CHECK(skipped.loss_scale == 4);
  CHECK_FALSE(gpu.step(*session, 0.5f).skipped);  // the mark of the step before is gone
  session->pull_final();
  CHECK(gpu.weights(*session, gpu.job.b, 3) == Floats{6, 7, 8});
  session->finish({});
  CHECK(gpu.job.scheduler.finished()->skipped_steps == 1);
}

TEST_CASE("GPU: the norm for clip_norm is taken on the device") {
  GpuJob gpu;
  gpu.job.scheduler.settings["clip_norm"] = "3";
  auto session = gpu.start();
  CHECK(gpu.step(*session, 1).gradient_norm == doctest::Approx(3));
  CHECK(gpu.step(*session, -4).gradient_norm == doctest::Approx(12));
  session->finish({});
  for (FakeServer& server : gpu.job.servers) CHECK(server.endings().back().commit.factor == 0.25f);
}

TEST_CASE("GPU: micro-batches are added up on the device, with the host's bits") {
  const auto trained = [](Job& job, auto push, Session& session) {
    for (int step = 0; step < 3; ++step) {
      REQUIRE(session.begin_step());
      for (int batch = 0; batch < 3; ++batch) {
        push(job.a, 6, 0.1f * static_cast<float>(step + 7 * batch) - 0.33f);
        push(job.b, 3, batch == 0 ? -0.0f : 0.7f / static_cast<float>(step + batch));
      }
      CHECK_FALSE(session.commit({.samples = 96}).skipped);
    }
    session.finish({});
    std::vector<Floats> masters;
    for (FakeServer& server : job.servers)
      for (const auto& [partition, values] : server.masters()) masters.push_back(values);
    return masters;
  };
  std::vector<Floats> host, device;
  {
    Job job;
    job.scheduler.settings["clip_norm"] = "0.5";
    auto session = job.start({.accumulate_steps = 3});
    const auto push = [&](Parameter parameter, std::size_t elements, float value) {
      session->push(parameter, Floats(elements, value));
    };
    host = trained(job, push, *session);
  }
  {
    GpuJob gpu;
    gpu.job.scheduler.settings["clip_norm"] = "0.5";
    auto session = gpu.start({.accumulate_steps = 3});
    const auto push = [&](Parameter parameter, std::size_t elements, float value) {
      gpu.push(*session, parameter, elements, value);
    };
    device = trained(gpu.job, push, *session);
  }
  CHECK(device == host);
}

TEST_CASE("GPU: an infinity in one of several micro-batches skips the step") {
  GpuJob gpu;
  auto session = gpu.start({.inject = "nonfinite:worker=0,at_step=0", .accumulate_steps = 2});
  REQUIRE(session->begin_step());
  for (int batch = 0; batch < 2; ++batch) {
    gpu.push(*session, gpu.job.a, 6, 1);
    gpu.push(*session, gpu.job.b, 3, 1);
  }
  CHECK(session->commit({.samples = 64}).skipped);
  session->finish({});
}

TEST_CASE("GPU: an injected infinity skips the step as one of the program's does") {
  GpuJob gpu;
  auto session = gpu.start({.inject = "nonfinite:worker=0,at_step=1"});
  CHECK_FALSE(gpu.step(*session, 0.5f).skipped);
  CHECK(gpu.step(*session, 0.5f).skipped);
  session->pull_final();
  CHECK(gpu.weights(*session, gpu.job.b, 3) == Floats{6.5, 7.5, 8.5});
  session->finish({});
}

TEST_CASE("GPU: host and device are not mixed up, and what cannot be is refused in one line") {
  GpuJob gpu;
  {
    auto session = gpu.start();
    REQUIRE(session->begin_step());
    CHECK(contains(error_of([&] { session->weights(gpu.job.a); }), "use device_weights()"));
    CHECK(contains(error_of([&] { session->push(gpu.job.b, Floats(3)); }),
                   "this session is on a device"));
  }
  const auto cpu = kernels::open_cpu_backend();
  Job job;
  auto session = job.start({.device = cpu.get()});  // whose memory is the host's
  CHECK_FALSE(session->on_device());
  REQUIRE(session->begin_step());
  CHECK(contains(error_of([&] { session->device_weights(job.a); }), "use weights()"));
  CHECK(contains(error_of([&] {
                   session->push(job.b, DeviceGradient{nullptr, 3});
                 }),
                 "this session is on the host"));
}

TEST_CASE("GPU: a session that ends in the middle of a step leaves nothing on the device") {
  GpuJob gpu;
  {
    auto session = gpu.start();
    REQUIRE(session->begin_step());
    gpu.push(*session, gpu.job.a, 6, 1);
  }
  gpu.gradient = {};
  CHECK(gpu.cuda.allocated() == 0);
  CHECK(gpu.cuda.pinned() == 0);
}

}  // namespace leeway::worker
