// The life of a session: start, steps, resume, stop, end, and what ends it early.
#include "worker/session.h"

#include <doctest/doctest.h>

#include <thread>

#include "common/half.h"
#include "tests/unit/worker/session_job.h"
#include "worker/loss_scaler.h"

namespace leeway::worker {
namespace {

using testing::contains;
using testing::error_of;
using testing::FakeServer;
using testing::floats;
using testing::Floats;
using testing::Job;
using transport::Ending;

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

TEST_CASE(
    "a worker that comes as the job stops ends as the others do, and is refused when it is over") {
  Job job;
  job.scheduler.initializer = false;
  job.scheduler.planned = rpc::Phase::STOPPING;
  auto session = job.start();
  CHECK_FALSE(session->begin_step());
  session->finish({});
  CHECK(job.scheduler.finished()->clock == 0);
  session.reset();

  Job over;
  over.scheduler.planned = rpc::Phase::DONE;
  CHECK(contains(testing::error_of([&] { over.start(); }), "stopped before training began"));
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

}  // namespace leeway::worker
