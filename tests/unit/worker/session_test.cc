// A session against servers and a scheduler in this process, over tcp.
#include "worker/session.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <limits>
#include <numeric>
#include <thread>

#include "common/codec.h"
#include "common/half.h"
#include "tests/unit/worker/fake_gpu_backend.h"
#include "tests/unit/worker/session_fake_scheduler.h"
#include "tests/unit/worker/session_fake_server.h"
#include "worker/loss_scaler.h"
#include "worker/session_impl.h"

namespace leeway::worker {
namespace {

using testing::FakeGpuBackend;
using testing::FakeScheduler;
using testing::FakeServer;
using transport::Ending;
using transport::testing::FakeCuda;
using Floats = std::vector<float>;

std::array<FakeServer, 2>& the_servers() {
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
      CHECK_MESSAGE(!error, *error);
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

Floats floats(std::span<const std::byte> bytes) {
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

bool contains(const std::string& text, std::string_view part) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) MESSAGE(text);
  return found;
}

}  // namespace

TEST_CASE("a job of three steps: initial values, weights, counts, and a good end") {
  Job job;
  auto session = job.start();
  REQUIRE(session->begin_step());
  CHECK(floats(session->weights(job.a)) == Floats{1, 2, 3, 4, 5, 6});
  CHECK(floats(session->weights(job.b)) == Floats{7, 8, 9});
  CHECK(session->weights(job.none).empty());
  session->push(job.none, {});
  session->push(job.b, Floats(3, 8 * 0.5f));
  session->push(job.a, Floats(6, 8 * 0.5f));
  const StepResult result = session->commit({.samples = 32, .loss = 2});
  CHECK(!result.skipped);
  CHECK(result.loss_scale == 8);
  job.servers[0].lag(1);
  job.step(*session, 0.25f);
  job.step(*session, 0.25f, 0.125);
  CHECK(session->clock() == Clock(3));
  session->pull_final();
  CHECK(floats(session->weights(job.a)) == Floats{0, 1, 2, 3, 4, 5});
  session->note_loading(1.5);
  session->finish({{"accuracy", 0.75}});

  const auto report = job.scheduler.finished();
  REQUIRE(report);
  CHECK(report->clock == 3);
  CHECK(report->samples == 96);
  CHECK(report->loss == 0.125);
  CHECK(report->epoch == 0.5);
  CHECK(report->skipped_steps == 0);
  CHECK(report->metrics.at("accuracy") == 0.75);
  CHECK(report->seconds_loading == 1.5);
  CHECK(report->bytes_pushed == 9 * 4 + 3 * 9 * 2);
  CHECK(report->bytes_pulled >= 3 * 9 * 4);
  // The bound is 0 and the fake servers lag by one: counted as what it is.
  CHECK(report->staleness_histogram.at(0) >= 1);
  CHECK(report->staleness_violations >= 1);
  CHECK(!job.scheduler.fault_so_far());
  const auto endings = job.servers[1].endings();
  REQUIRE(endings.size() == 4);
  CHECK(endings[0].commit.ending == Ending::kInitial);
  for (std::size_t i = 1; i < 4; ++i) {
    CHECK(endings[i].commit.clock == Clock(i - 1));
    CHECK(endings[i].payloads == 1);
    CHECK(endings[i].commit.samples == 32);
  }
}

TEST_CASE("weights come in the job's pull dtype") {
  Job job(Dtype::kF16);
  auto session = job.start();
  CHECK(session->weights_dtype() == Dtype::kF16);
  REQUIRE(session->begin_step());
  const auto bytes = session->weights(job.b);
  REQUIRE(bytes.size() == 6);
  Half first;
  std::memcpy(&first, bytes.data(), sizeof(first));
  CHECK(to_float(first) == 7);
  session->finish({});
}

TEST_CASE("with checksum = crc32c every payload goes with its own") {
  Job job;
  job.scheduler.settings["checksum"] = "crc32c";
  auto session = job.start();
  job.step(*session, 0.25f);
  job.step(*session, 0.5f);
  session->finish({});
  // The initial values and two steps, of two partitions and of one.
  CHECK(job.servers[0].checksums() == 6);
  CHECK(job.servers[1].checksums() == 3);
}

TEST_CASE("gradients travel in the job's codec, as many bytes as it takes") {
  for (const NamedCodec& codec : kGradientCodecs) {
    if (codec.codec == Codec::kTopK) continue;  // it sends a part: below
    CAPTURE(codec.name);
    Job job;
    job.scheduler.settings["gradient_codec"] = std::string(codec.name);
    auto session = job.start();
    job.step(*session, 0.25f);
    job.step(*session, 1.5f);
    session->finish({});
    CHECK(job.servers[0].masters().at(PartitionId(2)) == Floats{5.25f, 6.25f, 7.25f});
    CHECK(job.servers[1].masters().at(PartitionId(1)).at(0) == 3.25f);
    // Three partitions of three elements.
    CHECK(job.scheduler.finished()->bytes_pushed ==
          static_cast<std::int64_t>(9 * 4 + 2 * 3 * GradientCodec{codec.codec}.bytes(3)));
  }
}

TEST_CASE("top-k sends the largest, and everything in the end, skipped steps left out") {
  Job job;
  job.scheduler.settings["gradient_codec"] = "topk";  // one of three elements
  auto session = job.start();
  const auto step = [&](const Floats& b) {
    REQUIRE(session->begin_step());
    const auto scale = static_cast<float>(session->loss_scale());
    Floats scaled = b;
    for (float& x : scaled) x *= scale;
    session->push(job.a, Floats(6, 0));
    session->push(job.b, scaled);
    return session->commit({}).skipped;
  };
  const auto after = [&](std::size_t endings) {
    CHECK(job.servers[0].has_endings(endings));
    return job.servers[0].masters().at(PartitionId(2));
  };
  CHECK(!step({1, 2, 4}));
  CHECK(after(2) == Floats{7, 8, 5});  // the first ending is of the initial values
  CHECK(step({64, std::numeric_limits<float>::infinity(), 64}));
  CHECK(!step({1, 2, 3}));  // with 1 and 2 from before, at half the loss scale
  CHECK(after(4) == Floats{7, 4, 5});
  CHECK(!step({0, 0, 0}));
  CHECK(!step({0, 0, 0}));
  CHECK(after(6) == Floats{5, 4, 2});
  session->finish({});
  CHECK(job.scheduler.finished()->bytes_pushed == 9 * 4 + 4 * 3 * 6);
}

TEST_CASE("N4: what a codec cannot hold skips the step as FP16 does") {
  for (const NamedCodec& codec : kGradientCodecs) {
    CAPTURE(codec.name);
    Job job;
    job.scheduler.settings["gradient_codec"] = std::string(codec.name);
    auto session = job.start();
    REQUIRE(session->begin_step());
    session->push(job.a, Floats{1, 1, 1, 1, 1, std::numeric_limits<float>::quiet_NaN()});
    session->push(job.b, Floats(3, 1));
    CHECK(session->commit({}).skipped);
    REQUIRE(session->begin_step());  // 1e5 is beyond FP16 alone
    session->push(job.a, Floats(6, 1e5f));
    session->push(job.b, Floats(3, 1));
    CHECK(session->commit({}).skipped == (codec.codec == Codec::kF16));
    session->finish({});
  }
}

TEST_CASE("with accumulation the mean of the pushes travels") {
  Job job;
  auto session = job.start({.accumulate_steps = 2});
  REQUIRE(session->begin_step());
  for (float gradient : {8.0f, 24.0f}) {
    session->push(job.a, Floats(6, gradient));
    session->push(job.b, Floats(3, gradient));
  }
  session->commit({.samples = 64});
  session->finish({});
  CHECK(job.servers[0].masters().at(PartitionId(2)) == Floats{5, 6, 7});
}

TEST_CASE("a gradient beyond clip_norm is scaled down to it, by the same factor on every server") {
  Job job;
  job.scheduler.settings["clip_norm"] = "3";
  auto session = job.start();
  CHECK(job.step(*session, 0.5).gradient_norm == doctest::Approx(1.5));
  CHECK(job.step(*session, 1).gradient_norm == doctest::Approx(3));  // nine elements: not beyond
  CHECK(job.step(*session, -4).gradient_norm == doctest::Approx(12));
  // One element of all counts, whatever server it is on.
  REQUIRE(session->begin_step());
  Floats gradient(6, 0.0f);
  gradient[5] = static_cast<float>(session->loss_scale()) * 30;
  session->push(job.a, gradient);
  session->push(job.b, Floats(3, 0.0f));
  CHECK(session->commit({}).gradient_norm == doctest::Approx(30));
  session->finish({});
  for (FakeServer& server : job.servers) {
    const auto endings = server.endings();
    REQUIRE(endings.size() == 5);  // the initial values' first
    CHECK(endings[1].commit.factor == 1.0f);
    CHECK(endings[2].commit.factor == 1.0f);
    CHECK(endings[3].commit.factor == 0.25f);
    CHECK(endings[4].commit.factor == doctest::Approx(0.1));
  }
}

TEST_CASE("the norm is of the mean over micro-batches") {
  Job job;
  job.scheduler.settings["clip_norm"] = "3";
  auto session = job.start({.accumulate_steps = 2});
  REQUIRE(session->begin_step());
  const auto scale = static_cast<float>(session->loss_scale());
  for (const float value : {1.0f, 7.0f}) {
    session->push(job.a, Floats(6, value * scale));
    session->push(job.b, Floats(3, value * scale));
  }
  CHECK(session->commit({}).gradient_norm == doctest::Approx(12));
  session->finish({});
  CHECK(job.servers[0].endings().back().commit.factor == 0.25f);
}

TEST_CASE("local steps move the worker's own weights; a round's change travels as one step") {
  Job job;
  job.scheduler.settings["local_steps"] = "2";
  job.scheduler.settings["local_learning_rate"] = "0.5";
  auto session = job.start();
  job.step(*session, 1);
  CHECK(session->clock() == Clock(1));
  REQUIRE(session->begin_step());
  CHECK(floats(session->weights(job.a)) == Floats{0.5, 1.5, 2.5, 3.5, 4.5, 5.5});
  for (const FakeServer& server : job.servers) CHECK(server.endings().size() == 1);  // initial
  session->push(job.a, Floats(6, 8 * 0.5f));
  session->push(job.b, Floats(3, 8 * 0.5f));
  session->commit({.samples = 16});
  CHECK(session->clock() == Clock(2));
  REQUIRE(job.servers[0].has_endings(2));
  CHECK(job.servers[0].endings()[1].commit.samples == 48);

  // A step that is skipped moves nothing; a round that is cut short is sent when it has to be.
  REQUIRE(session->begin_step());
  CHECK(floats(session->weights(job.a)) == Floats{0.25, 1.25, 2.25, 3.25, 4.25, 5.25});
  session->push(job.a, Floats(6, std::numeric_limits<float>::infinity()));
  session->push(job.b, Floats(3, 1));
  CHECK(session->commit({.samples = 32}).skipped);
  job.step(*session, 0.5f);
  job.step(*session, 0.25f);
  CHECK(session->clock() == Clock(5));
  session->pull_final();
  CHECK(floats(session->weights(job.a)) == Floats{-0.125, 0.875, 1.875, 2.875, 3.875, 4.875});
  session->finish({});
  const auto report = job.scheduler.finished();
  REQUIRE(report);
  CHECK(report->clock == 3);
  CHECK(report->samples == 144);
  CHECK(report->skipped_steps == 1);
}

TEST_CASE("a round of local steps that is dropped leaves the weights as they were pulled") {
  Job job;
  job.scheduler.settings["local_steps"] = "2";
  job.scheduler.settings["local_learning_rate"] = "1e10";
  auto session = job.start();
  job.step(*session, 1e30f);  // too far for FP32
  job.step(*session, 0);
  REQUIRE(session->begin_step());
  CHECK(floats(session->weights(job.a)) == Floats{1, 2, 3, 4, 5, 6});
  session->push(job.a, Floats(6, 0));
  session->push(job.b, Floats(3, 0));
  session->commit({});
  session->finish({});
  CHECK(job.servers[0].endings()[1].commit.ending == Ending::kAbandon);
}

TEST_CASE("N4: one infinity anywhere skips the whole step on every server, counted once") {
  Job job;
  auto session = job.start();
  job.step(*session, 1);
  REQUIRE(session->begin_step());
  Floats gradient(6, 8);
  gradient[5] = std::numeric_limits<float>::infinity();
  session->push(job.b, Floats(3, 8));
  session->push(job.a, gradient);
  const StepResult result = session->commit({.samples = 32});
  CHECK(result.skipped);
  CHECK(result.loss_scale == 4);
  job.step(*session, 1);
  session->finish({});
  CHECK(job.scheduler.finished()->skipped_steps == 1);
  CHECK(job.scheduler.finished()->loss_scale == 4);
  for (FakeServer& server : job.servers) {
    const auto endings = server.endings();
    REQUIRE(endings.size() == 4);
    CHECK(endings[1].commit.ending == Ending::kCommit);
    CHECK(endings[2].commit.ending == Ending::kAbandon);
    CHECK(endings[3].commit.ending == Ending::kCommit);
    CHECK(endings[3].payloads == (&server == &job.servers[0] ? 2 : 1));
  }
  CHECK(job.servers[0].masters().at(PartitionId(2)) == Floats{5, 6, 7});
  CHECK(job.servers[1].masters().at(PartitionId(1)) == Floats{3, 4});
}

TEST_CASE("N4: --inject nonfinite skips its step alone") {
  Job job;
  auto session = job.start({.inject = "nonfinite:worker=0,at_step=1;nonfinite:worker=1,at_step=0"});
  CHECK(!job.step(*session, 1).skipped);
  CHECK(job.step(*session, 1).skipped);
  CHECK(!job.step(*session, 1).skipped);
  session->finish({});
}

TEST_CASE("N2: not finite from step 0 stops at the minimum scale, masters as at the start") {
  Job job;
  auto session = job.start();
  std::string error;
  for (int step = 0; step < 10 && error.empty(); ++step) {
    REQUIRE(session->begin_step());
    session->push(job.b, Floats(3, std::numeric_limits<float>::quiet_NaN()));
    session->push(job.a, Floats(6, 1));
    if (step < 3) {
      CHECK(session->commit({}).skipped);
    } else {
      error = error_of([&] { session->commit({}); });
    }
  }
  CHECK(contains(error, "worker.0: step 3: the loss scale is at its minimum"));
  CHECK(contains(*job.scheduler.fault(), "the loss scale is at its minimum"));
  session.reset();
  CHECK(job.servers[0].masters().at(PartitionId(0)) == Floats{1, 2, 3, 4});
  CHECK(job.servers[0].masters().at(PartitionId(2)) == Floats{7, 8, 9});
}

TEST_CASE("a resumed worker goes on at its clock with its scale") {
  Job job(Dtype::kF32, true);
  LossScaler scaler({.initial = 64});
  const auto state = scaler.save();
  job.scheduler.progress.emplace();
  job.scheduler.progress->clock = 41;
  job.scheduler.progress->state.assign(reinterpret_cast<const char*>(state.data()), state.size());
  auto session = job.start();
  CHECK(session->clock() == Clock(41));
  CHECK(session->loss_scale() == 64);
  job.step(*session, 1);
  session->finish({});
  REQUIRE(job.servers[0].endings().size() == 1);  // no initial values
  CHECK(job.servers[0].endings()[0].commit.clock == Clock(41));
}

TEST_CASE("COMMIT waits for the servers to take everything, and commit() does not") {
  Job job;
  auto session = job.start();
  REQUIRE(session->begin_step());
  job.servers[1].withhold_taken(true);
  session->push(job.a, Floats(6, 8));
  session->push(job.b, Floats(3, 8));
  session->commit({});
  REQUIRE(job.servers[1].has_payloads(2));
  CHECK(job.servers[0].endings().size() == 1);
  job.servers[1].withhold_taken(false);
  CHECK(job.servers[0].has_endings(2));
  session->finish({});
}

TEST_CASE("STOPPING ends begin_step() that waits for weights") {
  Job job;
  auto session = job.start();
  job.step(*session, 1);
  job.last_step_served(*session);
  std::jthread stop([&job] {
    job.servers[1].has_pulls(3);
    job.scheduler.set_phase(rpc::Phase::STOPPING, "asked to");
  });
  CHECK(!session->begin_step());
  session->finish({});
  CHECK(job.scheduler.finished()->clock == 2);
  CHECK(job.scheduler.finished()->seconds_waiting > 0);
}

TEST_CASE("a program that has reached what it wanted stops the job") {
  Job job;
  auto session = job.start();
  job.step(*session, 1);
  job.last_step_served(*session);
  session->stop("good enough");
  CHECK(!session->begin_step());
  session->finish({});
  CHECK(job.scheduler.reason() == "worker.0: good enough");
}

TEST_CASE("FAILED ends a wait with the scheduler's reason, and is not told back") {
  Job job;
  auto session = job.start();
  job.last_step_served(*session);
  job.scheduler.set_phase(rpc::Phase::FAILED, "server.1 was killed");
  CHECK(error_of([&] { session->begin_step(); }) ==
        "worker.0: the job failed: server.1 was killed");
  session.reset();
  CHECK(!job.scheduler.fault_so_far());
}

TEST_CASE("a dead server is named") {
  Job job;
  auto session = job.start();
  job.last_step_served(*session);
  job.scheduler.lose_server(1);
  CHECK(contains(error_of([&] { session->begin_step(); }), "server.1 is dead"));
  CHECK(contains(*job.scheduler.fault(), "server.1 is dead"));
}

TEST_CASE("a server's refusal ends the session with its words") {
  Job job;
  auto session = job.start();
  job.begin_and_push(*session, 1);
  job.servers[1].refuse("out of patience");
  session->commit({});
  CHECK(contains(error_of([&] { session->begin_step(); }),
                 "server.1 refused a message of this worker: out of patience"));
}

TEST_CASE("a silent scheduler is named after member_timeout_ms; one that refuses, at once") {
  for (Code code : {Code::kUnavailable, Code::kRefused}) {
    Job job;
    auto session = job.start();
    job.last_step_served(*session);
    job.scheduler.stop_answering({code, "no route"});
    const std::string error = error_of([&] { session->begin_step(); });
    CHECK(contains(error, code == Code::kUnavailable ? "the scheduler at fake:1 has not answered"
                                                     : "no longer takes this worker"));
    CHECK(contains(error, "no route"));
  }
}

TEST_CASE("a session that leaves before finish() tells the scheduler") {
  Job job;
  job.start().reset();
  CHECK(job.scheduler.fault() == "left before finish()");
}

TEST_CASE("M8: joining retries while the scheduler is unavailable, for a while, and no refusal") {
  Job job;
  int calls = 0;
  const auto met = job.scheduler.on_join;
  job.scheduler.on_join = [&](const rpc::RegisterRequest& request) -> Status {
    if (++calls < 3) return fail(Code::kUnavailable, "connection refused");
    return met(request);
  };
  job.join().reset();
  CHECK(calls == 3);

  calls = 0;
  job.scheduler.on_join = [&](const rpc::RegisterRequest&) -> Status {
    ++calls;
    return fail(Code::kRefused, "the token is of another job");
  };
  CHECK(error_of([&] { job.join(); }) ==
        "worker.0: cannot join the job of the scheduler at fake:1: the token is of another job");
  CHECK(calls == 1);

  job.scheduler.on_join = [&](const rpc::RegisterRequest&) -> Status {
    return fail(Code::kUnavailable, "connection refused");
  };
  CHECK(contains(error_of([&] { job.join({.join_timeout = milliseconds(120)}); }),
                 "connection refused"));
}

TEST_CASE("the program's mistakes are named") {
  const auto in_step = [](auto mistake) {
    Job job;
    auto session = job.start();
    REQUIRE(session->begin_step());
    const std::string error = error_of([&] { mistake(job, *session); });
    CHECK(job.scheduler.fault() == error.substr(std::strlen("worker.0: ")));
    return error;
  };
  CHECK(contains(in_step([](Job& job, Session& session) {
                   session.push(job.a, Floats(6));
                   session.commit({});
                 }),
                 "commit() of step 0: parameter b was pushed 0 of 1 times"));
  CHECK(contains(in_step([](Job& job, Session& session) {
                   session.push(job.a, Floats(6));
                   session.push(job.a, Floats(6));
                 }),
                 "parameter a was pushed 2 times in step 0: accumulate_steps is 1"));
  CHECK(contains(in_step([](Job& job, Session& session) { session.push(job.a, Floats(5)); }),
                 "parameter a has 6 elements, the gradient pushed has 5"));
  CHECK(contains(in_step([](Job&, Session& session) { session.begin_step(); }),
                 "commit() step 0 first"));
  CHECK(contains(in_step([](Job& job, Session& session) {
                   session.push(job.a, Floats(6));
                   session.finish({});
                 }),
                 "finish() was called inside step 0"));
}

TEST_CASE("C3: a declaration that cannot be is refused by the parameter's name") {
  const auto declared = [](auto declare) {
    Job job;
    auto session = job.join();
    return error_of([&] { declare(*session); });
  };
  CHECK(contains(declared([](Session& session) {
                   session.declare("w", {2}, Floats(2));
                   session.declare("w", {2}, Floats(2));
                 }),
                 "parameter w is declared twice"));
  CHECK(contains(declared([](Session& session) {
                   session.declare("w", {2, 2}, Floats(3));
                 }),
                 "parameter w has 4 elements by its shape (2, 2) and 3 initial values"));
  CHECK(contains(declared([](Session& session) { session.declare("w", {-1}, {}); }),
                 "parameter w has the shape (-1,)"));
  CHECK(contains(declared([](Session& session) { session.start(); }), "no parameter was declared"));
}

TEST_CASE("F2: a missing variable is one line that says what to do") {
  for (const char* name : {"LEEWAY_SCHEDULER", "LEEWAY_TOKEN", "RANK", "WORLD_SIZE"}) {
    for (const char* other : {"LEEWAY_SCHEDULER", "LEEWAY_TOKEN", "RANK", "WORLD_SIZE"})
      setenv(other, "1", 1);
    unsetenv(name);
    CHECK(error_of([] { Session::from_environment(); }) ==
          std::string(name) + " is not set: start this program with leeway-run -- PROGRAM");
  }
  setenv("RANK", "one", 1);
  setenv("WORLD_SIZE", "1", 1);
  CHECK(contains(error_of([] { Session::from_environment(); }), "RANK = one is no number"));
}

TEST_CASE("--inject slow makes a step take its factor") {
  Job job;
  auto session = job.start({.inject = "slow:worker=0,factor=3"});
  REQUIRE(session->begin_step());
  const TimePoint began = MonotonicClock::now();
  session->push(job.a, Floats(6));
  session->push(job.b, Floats(3));
  const double before = seconds_between(began, MonotonicClock::now());
  session->commit({});
  CHECK(seconds_between(began, MonotonicClock::now()) >= 3 * before);
  session->finish({});
}

namespace {

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
    Floats values(elements);
    backend.download(values.data(), session.device_weights(parameter), elements * sizeof(float));
    return values;
  }

  FakeCuda cuda;
  Job job;
  FakeGpuBackend backend;
  kernels::Buffer gradient;
};

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

TEST_CASE("GPU: an injected infinity is in the device's memory, too") {
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
  CHECK(
      contains(error_of([&] { gpu.start({.accumulate_steps = 2}); }), "add them up on the device"));
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
