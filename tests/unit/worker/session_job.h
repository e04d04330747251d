// A job of one session with servers and a scheduler in this process, over tcp. Servers are shared
// by all tests of a binary: opening endpoints is slow.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/cast.h"
#include "tests/unit/worker/fake_gpu_backend.h"
#include "tests/unit/worker/session_fake_scheduler.h"
#include "tests/unit/worker/session_fake_server.h"
#include "worker/session_impl.h"

namespace leeway::worker::testing {

using transport::testing::FakeCuda;
using Floats = std::vector<float>;

inline std::array<FakeServer, 2>& the_servers() {
  static std::array<FakeServer, 2> servers{FakeServer{0}, FakeServer{1}};
  return servers;
}

// Two servers, one worker, two parameters: "a" has 6 elements in two partitions (0 on server 0, 1
// on server 1), "b" has 3 in partition 2 on server 0; "none" has none.
struct Job {
  explicit Job(Dtype dtype = Dtype::kF32, bool restored = false)
      : servers(the_servers()), scheduler({servers[0].info(), servers[1].info()}) {
    for (FakeServer& server : servers) server.restart(dtype, restored);
    scheduler.settings = {{"pull_dtype", std::string(to_string(dtype))},
                          {"loss_scale_initial", "8"},
                          {"loss_scale_growth_interval", "100"},
                          {"heartbeat_interval_ms", "20"},
                          {"member_timeout_ms", "200"}};
    scheduler.on_join = [this](const rpc::RegisterRequest& request) -> Status {
      for (FakeServer& server : servers) server.meet(request.fabric.address);
      return {};
    };
  }
  ~Job() {
    for (const FakeServer& server : servers) {
      const auto error = server.error();
      CHECK_MESSAGE(!error, error.value_or(""));
    }
  }

  std::unique_ptr<Session> join(SessionOptions options = {}) {
    options.scheduler = "fake:1";
    options.fabric = "tcp";
    return join_with(options, scheduler.factory());
  }
  std::unique_ptr<Session> start(SessionOptions options = {}) {
    auto session = join(std::move(options));
    none = session->declare("none", {0, 4}, {});
    b = session->declare("b", {3}, Floats{7, 8, 9});
    a = session->declare("a", {2, 3}, Floats{1, 2, 3, 4, 5, 6});
    session->start();
    return session;
  }
  // A step with this gradient in every element.
  StepResult step(Session& session, float gradient, double loss = 1) {
    begin_and_push(session, gradient);
    return session.commit({.samples = 32, .loss = loss, .epoch = 0.5});
  }
  // A step whose weights for the next one do not come.
  void last_step_served(Session& session) {
    begin_and_push(session, 1);
    for (FakeServer& server : servers) server.withhold_pulls(true);
    session.commit({});
  }
  void begin_and_push(Session& session, float gradient) {
    REQUIRE(session.begin_step());
    const auto scale = static_cast<float>(session.loss_scale());
    session.push(a, Floats(6, gradient * scale));
    session.push(b, Floats(3, gradient * scale));
  }

  std::array<FakeServer, 2>& servers;
  FakeScheduler scheduler;
  Parameter a, b, none;
};

inline Floats floats(std::span<const std::byte> bytes) {
  Floats values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// The text of the SessionError that `call` throws.
template <typename Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const SessionError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

inline bool contains(const std::string& text, std::string_view part) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) MESSAGE(text);
  return found;
}

// The same job with gradients and weights on a GPU that is none.
struct GpuJob {
  explicit GpuJob(Dtype dtype = Dtype::kF32) : job(dtype), backend(cuda) {}

  std::unique_ptr<Session> start(SessionOptions options = {}) {
    options.device = &backend;
    options.scheduler = "fake:1";
    options.fabric = "tcp";
    auto session = join_with(options, job.scheduler.factory(), &cuda.driver());
    job.none = session->declare("none", {0, 4}, {});
    job.b = session->declare("b", {3}, Floats{7, 8, 9});
    job.a = session->declare("a", {2, 3}, Floats{1, 2, 3, 4, 5, 6});
    session->start();
    gradient = backend.allocate(6 * sizeof(float));
    return session;
  }
  // A kernel writes the gradient just before it is pushed, and again right after.
  void push(Session& session, Parameter parameter, std::size_t elements, float value) {
    const auto set = [this](float to) {
      cuda.run_on(backend.stream(), [to, data = gradient.as<float>()] {
        std::fill_n(reinterpret_cast<float*>(FakeCuda::here(data)), 6, to);
      });
    };
    set(value);
    session.push(parameter, DeviceGradient{gradient.as<float>(), elements});
    set(-1000);
  }
  StepResult step(Session& session, float value) {
    REQUIRE(session.begin_step());
    const auto scale = static_cast<float>(session.loss_scale());
    push(session, job.a, 6, value * scale);
    push(session, job.b, 3, value * scale);
    return session.commit({.samples = 32, .loss = 1});
  }
  Floats weights(Session& session, Parameter parameter, std::size_t elements) {
    const Dtype dtype = session.weights_dtype();
    std::vector<std::byte> bytes(elements * size_of(dtype));
    backend.download(bytes.data(), session.device_weights(parameter), bytes.size());
    Floats values(elements);
    kernels::widen(bytes.data(), dtype, values);
    return values;
  }

  FakeCuda cuda;
  Job job;
  FakeGpuBackend backend;
  kernels::Buffer gradient;
};

}  // namespace leeway::worker::testing
