// What a session refuses, in one line each.
#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>

#include "tests/unit/worker/session_job.h"

namespace leeway::worker {
namespace {

using testing::contains;
using testing::error_of;
using testing::FakeServer;
using testing::floats;
using testing::Floats;
using testing::Job;

}  // namespace

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

}  // namespace leeway::worker
