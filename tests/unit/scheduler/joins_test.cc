// Workers that join while the job trains.
#include "job_fixture.h"

namespace leeway::scheduler {
namespace {

using rpc::MemberState;
using rpc::Phase;
using rpc::Role;

JobSetup with_places(JobSetup setup, std::uint32_t places) {
  setup.places = places;
  return setup;
}

// Dead, with so many steps on every server.
void bury(Job& job, std::int32_t id, std::int64_t steps) {
  REQUIRE(job.core.lost(Role::WORKER, id, "killed by signal 9", false, job.now).has_value());
  for (std::uint32_t s = 0; s < job.servers; ++s) {
    auto& report = job.server_reports[static_cast<std::int32_t>(s)];
    report.resolving[id] = steps;
    job.say_server(static_cast<std::int32_t>(s));
    report.resolving.clear();
  }
  REQUIRE(job.worker_member(id).state == MemberState::DEAD);
}

void come(Job& job, std::int32_t id, std::int64_t pid = 2000) {
  job.join(Role::WORKER, id, pid);
  REQUIRE(job.core.declare(job.worker(id), small_model(), job.now).has_value());
}

void say_joining(Job& job, std::int32_t server, std::int32_t worker, std::int64_t clock) {
  job.server_reports[server].joining[worker] = clock;
  job.say_server(server);
}

bool said(Job& job, std::string_view what) {
  for (const std::string& line : job.core.take_effects().log)
    if (contains(line, what)) return true;
  return false;
}

}  // namespace

TEST_CASE("C5 a joiner begins at the largest clock that servers name, on all of them") {
  Job job(setup_of(2, 3));
  job.run();
  bury(job, 1, 5);
  come(job, 1);
  // How the one before ended comes first.
  auto view = job.core.view();
  REQUIRE(view.workers.size() == 4);
  CHECK(view.workers[1].state == MemberState::DEAD);
  CHECK(view.workers[2].state == MemberState::JOINING);
  CHECK(view.workers[2].incarnation == job.worker(1).incarnation);
  CHECK(contains(error_of(job.core.plan(job.worker(1))), "servers agree on its first clock"));
  say_joining(job, 0, 1, 9);
  CHECK(job.core.view().workers.size() == 4);
  say_joining(job, 1, 1, 11);
  view = job.core.view();
  REQUIRE(view.workers.size() == 3);
  CHECK(view.workers[1].state == MemberState::LIVE);
  CHECK(view.workers[1].first_clock == 11);
  CHECK(said(job, "joins at clock 11, in the place of the one that ended at clock 5"));
  // It may reach out when every server has taken it in.
  job.say_server(0);
  const auto early = job.core.plan(job.worker(1));
  CHECK(contains(error_of(early), "servers take it in"));
  CHECK(early.error().retryable());
  job.say_server(1);
  const auto plan = job.core.plan(job.worker(1));
  REQUIRE(plan.has_value());
  CHECK(plan->progress.at(1).clock == 11);
  CHECK(job.core.plan(job.worker(0))->progress.empty());
  CHECK(job.core.status(job.now).replaced.clock == 5);
  CHECK(job.core.status(job.now).workers.at(1).first_clock == 11);
}

TEST_CASE("a joiner begins beyond what its predecessor may have begun") {
  Job job(setup_of(1, 2));
  job.run();
  bury(job, 0, 7);
  come(job, 0);
  say_joining(job, 0, 0, 3);
  CHECK(job.worker_member(0).first_clock == 9);
}

TEST_CASE("one more joins where there is room, any place that is free, and a full job says so") {
  Job full(setup_of(1, 1));
  full.run();
  CHECK(contains(error_of(full.core.join(request_of(Role::WORKER, -1, 7), full.now)),
                 "the job is full: worker 0"));

  Job job(with_places(setup_of(1, 2), 3));
  job.run();
  CHECK(job.core.view().workers.size() == 2);
  rpc::RegisterRequest any = request_of(Role::WORKER, -1, 3000);
  const auto joined = job.core.join(any, job.now);
  REQUIRE(joined.has_value());
  CHECK(joined->id == 2);
  CHECK(joined->workers == 3);
  CHECK(job.core.join(any, job.now)->incarnation == joined->incarnation);  // asked twice
  job.incarnations[{Role::WORKER, 2}] = joined->incarnation;
  REQUIRE(job.core.declare(job.worker(2), small_model(), job.now).has_value());
  say_joining(job, 0, 2, 4);
  CHECK(job.worker_member(2).state == MemberState::LIVE);
  CHECK(said(job, "joins at clock 4, as one worker more"));
  REQUIRE(job.finish(0, 10).has_value());
  REQUIRE(job.finish(1, 10).has_value());
  CHECK(job.core.phase() == Phase::RUNNING);
  REQUIRE(job.finish(2, 10).has_value());
  CHECK(job.core.phase() == Phase::DONE);
}

TEST_CASE("the place of a worker that seems alive is free when it has been silent for long") {
  Job job(setup_of(1, 2));
  job.run();
  const auto ask = [&] { return job.core.join(request_of(Role::WORKER, 1, 9), job.now); };
  CHECK(ask().error().retryable());
  job.pass(milliseconds(400));  // it is alive
  CHECK(contains(error_of(ask()), "is here already and alive"));
  CHECK_FALSE(ask().error().retryable());
  job.pass(milliseconds(5'400), 1);
  CHECK(contains(error_of(ask()), "servers still settle"));
  job.server_reports[0].resolving[1] = 0;
  job.say_server(0);
  CHECK(ask().has_value());
}

TEST_CASE(
    "what the scheduler slept through is no sign of life of a worker whose place is asked for") {
  Job job(setup_of(1, 2));
  job.run();
  const auto ask = [&] { return job.core.join(request_of(Role::WORKER, 1, 9), job.now); };
  CHECK(ask().error().retryable());
  job.now += milliseconds(3'000);
  job.core.tick(job.now);
  CHECK(ask().error().retryable());
}

TEST_CASE("a joiner that gives up, falls silent or has another model leaves things as they were") {
  Job job(setup_of(1, 2));
  job.run();
  bury(job, 1, 5);
  come(job, 1);
  REQUIRE(job.core.fault(job.worker(1), "no data", job.now).has_value());
  CHECK(job.core.phase() == Phase::RUNNING);
  CHECK(said(job, "did not join: no data"));
  CHECK(job.worker_member(1).state == MemberState::DEAD);
  CHECK(contains(error_of(job.core.report(job.worker(1), rpc::WorkerReport{}, job.now)),
                 "did not join: no data"));
  job.join(Role::WORKER, 1, 2000);
  rpc::Model other = small_model();
  other.tensors.pop_back();
  CHECK(contains(error_of(job.core.declare(job.worker(1), other, job.now)), "'bias'"));
  job.say_worker(1);
  job.pass(milliseconds(6'000), 1);
  CHECK(said(job, "did not join: silent for"));
  CHECK(job.worker_member(1).final_clock == 5);
  come(job, 1);
  say_joining(job, 0, 1, -1);
  CHECK(said(job, "server 0 has no way to it (--fabric and --bind as the job's), or no memory"));
}

TEST_CASE("a joiner that gives up before its first step is lost, and the job trains on") {
  Job job(setup_of(1, 2));
  job.run();
  bury(job, 1, 5);
  come(job, 1);
  say_joining(job, 0, 1, 8);
  job.worker_reports[1].clock = 8;
  job.say_worker(1);
  REQUIRE(job.core.fault(job.worker(1), "no room on the GPU", job.now).has_value());
  CHECK(job.core.phase() == Phase::RUNNING);
  CHECK(said(job, "no room on the GPU; the others go on"));
  CHECK(job.worker_member(1).state == MemberState::RESOLVING);
  job.server_reports[0].joining.clear();
  job.server_reports[0].resolving[1] = 8;
  job.say_server(0);
  CHECK(job.worker_member(1).final_clock == 8);
  // One that trains fails the job, as others do.
  job.server_reports[0].resolving.clear();
  come(job, 1, 3000);
  say_joining(job, 0, 1, 8);
  REQUIRE(job.worker_member(1).first_clock == 10);
  job.worker_reports[1].clock = 11;
  job.say_worker(1);
  REQUIRE(job.core.fault(job.worker(1), "a gradient is no number", job.now).has_value());
  CHECK(job.core.phase() == Phase::FAILED);
}

TEST_CASE("a restored place that nobody took at the start goes on beyond what it had done") {
  Job saved(with_directory(setup_of(1, 3)));
  saved.run();
  saved.server_reports[0].applied = {{0, 7}, {1, 6}, {2, 20}};
  REQUIRE(saved.core.checkpoint(saved.now).has_value());
  JobSetup setup = with_places(with_directory(setup_of(1, 2)), 3);
  setup.history = {saved.save()};
  setup.restore = setup.history[0].id;
  Job job(setup);
  job.run();
  come(job, 2);
  say_joining(job, 0, 2, 8);
  CHECK(job.worker_member(2).first_clock == 20);
}

TEST_CASE("joins and checkpoints wait for each other, and an ending job takes nobody") {
  Job job(with_directory(setup_of(1, 3)));
  job.run();
  bury(job, 1, 5);
  REQUIRE(job.core.checkpoint(job.now).has_value());
  come(job, 1);
  CHECK(job.core.view().workers.at(1).state == MemberState::DEAD);
  CHECK(contains(error_of(job.core.plan(job.worker(1))), "checkpoint 000001 comes first"));
  job.save();
  CHECK(job.core.view().workers.at(2).state == MemberState::JOINING);
  CHECK_FALSE(job.core.checkpoint(job.now).has_value());
  say_joining(job, 0, 1, 6);
  CHECK(job.worker_member(1).state == MemberState::LIVE);
  bury(job, 2, 8);
  come(job, 2);
  job.core.stop("Ctrl-C", job.now);
  CHECK(said(job, "did not join: the job is ending"));
  CHECK(contains(error_of(job.core.join(request_of(Role::WORKER, 2, 9), job.now)),
                 "comes too late: the job is stopping: Ctrl-C"));
}

TEST_CASE("M3 C5 below min_workers workers train on while a joiner's place becomes free") {
  Job job(setup_of(1, 2, {{"min_workers", "2"}, {"update", "per_clock"}, {"staleness", "2"}}));
  job.run();
  bury(job, 1, 5);
  CHECK(job.core.view().paused);
  come(job, 1);
  CHECK_FALSE(job.core.view().paused);
  REQUIRE(job.core.fault(job.worker(1), "no data", job.now).has_value());
  CHECK(job.core.view().paused);
  come(job, 1);
  say_joining(job, 0, 1, 7);
  CHECK_FALSE(job.core.view().paused);
  CHECK(said(job, "training goes on"));
}

TEST_CASE("M3 below min_workers the job waits for a joiner, for so long") {
  const SettingValues settings = {{"min_workers", "1"}, {"rejoin_timeout_ms", "10000"}};
  Job job(setup_of(1, 1, settings));
  job.run();
  bury(job, 0, 5);
  CHECK(job.core.phase() == Phase::RUNNING);
  CHECK(job.core.view().paused);
  come(job, 0);
  say_joining(job, 0, 0, 5);
  CHECK_FALSE(job.core.view().paused);
  CHECK(job.core.phase() == Phase::RUNNING);

  Job alone(setup_of(1, 1, settings));
  alone.run();
  bury(alone, 0, 5);
  alone.pass(milliseconds(11'000));
  CHECK(alone.core.phase() == Phase::FAILED);
  CHECK(contains(alone.core.reason(), "nobody joined within rejoin_timeout_ms"));
}

}  // namespace leeway::scheduler
