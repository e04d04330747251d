// Membership, declarations, phases, deaths and ends of a job.
#include "job_fixture.h"

namespace leeway::scheduler {
namespace {

using rpc::MemberState;
using rpc::Phase;
using rpc::Role;

TEST_CASE("members get incarnations; a second process with the same id is refused") {
  Job job(setup_of(1, 2));
  job.join(Role::WORKER, 0);
  CHECK(job.worker(0).incarnation == 100);
  const auto epoch = job.core.epoch();
  job.join(Role::WORKER, 0);  // the same process again
  CHECK(job.worker(0).incarnation == 100);
  CHECK(job.core.epoch() == epoch);
  CHECK(contains(error_of(job.core.join(request_of(Role::WORKER, 0, 5), job.now)),
                 "worker 0 (node, pid 1000) is here already"));
  CHECK(contains(error_of(job.core.join(request_of(Role::WORKER, 2), job.now)), "no worker 2"));
  CHECK(contains(error_of(job.core.join(request_of(Role::SERVER, -1), job.now)), "no server -1"));
  job.join(Role::SERVER, 0);
  CHECK(job.server(0).incarnation == 101);
}

TEST_CASE("stale and unknown incarnations are refused everywhere") {
  Job job(setup_of(1, 1));
  job.join_all();
  for (const std::int64_t wrong : {job.worker(0).incarnation - 1, job.worker(0).incarnation + 1}) {
    rpc::Caller who = job.worker(0);
    who.incarnation = wrong;
    const std::string_view text =
        wrong < job.worker(0).incarnation ? "is stale" : "is not known here";
    CHECK(contains(error_of(job.core.report(who, rpc::WorkerReport{}, job.now)), text));
    CHECK(contains(error_of(job.core.declare(who, small_model(), job.now)), text));
    CHECK(contains(error_of(job.core.plan(who)), text));
    CHECK(contains(error_of(job.core.finish(who, rpc::WorkerReport{}, job.now)), text));
    CHECK(contains(error_of(job.core.fault(who, "x", job.now)), text));
  }
  CHECK(job.core.phase() == Phase::GATHERING);
  CHECK_FALSE(job.core.report(job.server(0), rpc::WorkerReport{}, job.now).has_value());
}

TEST_CASE(
    "the plan comes when all have declared, RUNNING when all servers are ready for its view") {
  Job job(setup_of(2, 2));
  job.join_all();
  REQUIRE(job.core.declare(job.worker(1), small_model(), job.now).has_value());
  CHECK(job.core.phase() == Phase::GATHERING);
  const auto early = job.core.plan(job.worker(1));
  REQUIRE_FALSE(early.has_value());
  CHECK(early.error().retryable());
  CHECK(contains(early.error().message, "worker 0 has not declared"));
  const auto old_epoch = job.core.epoch();
  REQUIRE(job.core.declare(job.worker(0), small_model(), job.now).has_value());
  CHECK(job.core.phase() == Phase::PLANNED);
  const auto plan = job.core.plan(job.server(0));
  REQUIRE(plan.has_value());
  CHECK(plan->tensors.at(0).name == "bias");
  CHECK(plan->restore.empty());
  CHECK(contains(error_of(job.core.join(request_of(Role::WORKER, 0, 9), job.now)), "too late"));

  job.server_reports[0].ready = job.server_reports[1].ready = true;
  job.say_server(0);
  rpc::ServerReport stale = job.server_reports[1];
  stale.epoch = old_epoch;
  REQUIRE(job.core.report(job.server(1), stale, job.now).has_value());
  CHECK(job.core.phase() == Phase::PLANNED);
  const auto before = job.core.epoch();
  job.say_server(1);
  CHECK(job.core.phase() == Phase::RUNNING);
  CHECK(job.core.epoch() > before);
  CHECK(job.core.view().initializer == 0);
}

TEST_CASE("C3 the same model in any order is accepted, another is refused by the tensor's name") {
  Job job(setup_of(1, 2));
  job.join_all();
  rpc::Model model = small_model();
  model.settings["learning_rate"] = "0.5";
  REQUIRE(job.core.declare(job.worker(0), model, job.now).has_value());
  const auto refusal = [&](const rpc::Model& other) {
    return error_of(job.core.declare(job.worker(1), other, job.now));
  };
  rpc::Model other = model;
  other.tensors[0].shape = {100, 30};
  std::string text = refusal(other);
  CHECK(contains(text, "'weight' has shape (30, 100) in worker 0's"));
  CHECK(contains(text, "(100, 30) in worker 1's"));
  other = model;
  other.tensors.pop_back();
  CHECK(contains(refusal(other), "'bias' (100,) is in worker 0's model and not in worker 1's"));
  other = model;
  other.tensors.push_back(tensor("extra", {1}));
  CHECK(contains(refusal(other), "'extra' (1,) is in worker 1's and not in worker 0's"));
  other = model;
  other.tensors.push_back(other.tensors[0]);
  CHECK(contains(refusal(other), "worker 1: tensor 'weight' is declared twice"));
  other = model;
  other.settings["learning_rate"] = "0.25";
  CHECK(contains(refusal(other), "'learning_rate' is '0.5' in worker 0's program and '0.25'"));
  other = model;
  other.settings.clear();
  CHECK(contains(refusal(other), "'0.5' in worker 0's program and no value"));
  CHECK(job.core.phase() == Phase::GATHERING);
  std::swap(model.tensors[0], model.tensors[1]);
  CHECK(refusal(model).empty());
  CHECK(job.core.phase() == Phase::PLANNED);
}

TEST_CASE("settings: default < program < person, and nonsense is refused") {
  Job job(setup_of(1, 1, {{"momentum", "0.5"}}));
  job.join_all();
  rpc::Model model = small_model();
  model.settings = {{"learning_rat", "1"}};
  CHECK(contains(error_of(job.core.declare(job.worker(0), model, job.now)),
                 "did you mean 'learning_rate'"));
  model.settings = {{"beta1", "7"}};
  CHECK(contains(error_of(job.core.declare(job.worker(0), model, job.now)), "beta1 = 7"));
  model.settings = {{"momentum", "0.7"}, {"learning_rate", "0.125"}};
  REQUIRE(job.core.declare(job.worker(0), model, job.now).has_value());
  const auto plan = job.core.plan(job.worker(0));
  REQUIRE(plan.has_value());
  CHECK(plan->settings.at("momentum") == "0.5");
  CHECK(plan->settings.at("learning_rate") == "0.125");
  CHECK(plan->settings.at("beta1") == "0.9");
  CHECK_THROWS_AS(JobCore(setup_of(1, 1, {{"momentum", "2"}}), job.now), ConfigError);
}

TEST_CASE("M3 not everybody comes: the reason says who is missing; a lost one may be replaced") {
  Job job(setup_of(1, 2, {{"start_timeout_ms", "20000"}}));
  job.join_all();
  REQUIRE(job.core.declare(job.worker(0), small_model(), job.now).has_value());
  job.pass(milliseconds(10'000), 0);
  CHECK(job.core.view().workers.size() == 2);  // it never reported: it may still be starting
  job.say_worker(0);
  job.pass(milliseconds(6'000), 0);
  CHECK(job.core.view().workers.size() == 1);
  CHECK(job.core.phase() == Phase::GATHERING);
  job.pass(milliseconds(5'000));
  CHECK(job.core.phase() == Phase::FAILED);
  CHECK(contains(job.core.reason(), "worker 0 has not registered (the last one was silent for"));
  CHECK(contains(job.core.reason(), "worker 1 has not declared"));

  Job second(setup_of(1, 1));
  second.join_all();
  second.say_worker(0);
  second.pass(milliseconds(5'600), 0);
  CHECK(second.core.view().workers.empty());
  second.join(Role::WORKER, 0, 2000);
  REQUIRE(second.core.declare(second.worker(0), small_model(), second.now).has_value());
  CHECK(second.core.phase() == Phase::PLANNED);
}

TEST_CASE("M3 a stop before anybody trains ends the job cleanly") {
  Job job(with_directory(setup_of(1, 2)));
  job.join(Role::WORKER, 0);
  job.core.stop("Ctrl-C", job.now);
  CHECK(job.core.phase() == Phase::DONE);
  Job planned(with_directory(setup_of(1, 1)));
  planned.plan();
  planned.core.stop("Ctrl-C", planned.now);
  CHECK(planned.core.phase() == Phase::DONE);
  CHECK(planned.core.reason() == "Ctrl-C");
}

TEST_CASE("M9 a silent worker is resolved: DEAD with the largest of what the servers have") {
  Job job(setup_of(2, 2));
  job.run();
  job.pass(milliseconds(4'800), 1);
  CHECK(job.worker_member(1).state == MemberState::LIVE);
  const auto epoch = job.core.epoch();
  job.pass(milliseconds(600), 1);
  CHECK(job.worker_member(1).state == MemberState::RESOLVING);
  CHECK(job.core.epoch() > epoch);
  CHECK(contains(error_of(job.core.report(job.worker(1), rpc::WorkerReport{}, job.now)),
                 "was declared dead: silent for"));
  job.server_reports[0].resolving[1] = 4;
  job.say_server(0);
  CHECK(job.worker_member(1).state == MemberState::RESOLVING);
  job.server_reports[0].last_factors[1] = 0.25;  // of step 3
  job.server_reports[1].last_factors[1] = 0.5;   // of step 4, whose COMMIT server 0 missed
  job.server_reports[0].last_samples[1] = 32;
  job.server_reports[1].last_samples[1] = 48;
  job.server_reports[1].resolving[1] = 5;
  job.say_server(1);
  CHECK(job.worker_member(1).state == MemberState::DEAD);
  CHECK(job.worker_member(1).final_clock == 5);
  CHECK(job.worker_member(1).final_factor == 0.5);
  CHECK(job.worker_member(1).final_samples == 48);
  // Its last heartbeat may be older than its last step.
  CHECK(job.core.status(job.now).workers.at(1).worker.clock == 5);
  CHECK(job.core.phase() == Phase::RUNNING);
}

TEST_CASE(
    "M6 only differences of monotonic time count, and the scheduler's own sleep evicts nobody") {
  for (const auto start : {TimePoint{}, TimePoint{} + std::chrono::hours(24 * 365 * 50)}) {
    Job job(setup_of(1, 2), start);
    job.run();
    job.pass(milliseconds(20'000));
    job.now += std::chrono::hours(1);  // stopped, with the whole machine
    job.core.tick(job.now);
    CHECK(job.core.phase() == Phase::RUNNING);
    CHECK(job.worker_member(0).state == MemberState::LIVE);
    job.pass(milliseconds(6'000), 0);
    CHECK(job.worker_member(0).state == MemberState::RESOLVING);
  }
}

TEST_CASE("M1 a lost server fails the job and is named") {
  Job job(setup_of(2, 1));
  job.run();
  job.pass(milliseconds(6'000), -1, 1);
  CHECK(job.core.phase() == Phase::FAILED);
  CHECK(contains(job.core.reason(), "lost server 1 (node, pid 1001): silent for"));
  Job told(setup_of(2, 1));
  told.run();
  REQUIRE(told.core.lost(Role::SERVER, 0, "killed by signal 9", false, told.now).has_value());
  CHECK(told.core.phase() == Phase::FAILED);
  CHECK(contains(told.core.reason(), "killed by signal 9"));
}

TEST_CASE("the launcher's word of a dead worker: the others go on, unless it was at fault") {
  Job job(setup_of(1, 3));
  job.run();
  REQUIRE(job.core.lost(Role::WORKER, 2, "killed by signal 9", false, job.now).has_value());
  CHECK(job.worker_member(2).state == MemberState::RESOLVING);
  REQUIRE(job.finish(1, 10).has_value());
  REQUIRE(job.core.lost(Role::WORKER, 1, "killed by signal 9", false, job.now).has_value());
  CHECK(job.worker_member(1).state == MemberState::FINISHED);
  CHECK(job.core.phase() == Phase::RUNNING);
  REQUIRE(job.core.lost(Role::WORKER, 0, "exit status 3", true, job.now).has_value());
  CHECK(job.core.phase() == Phase::FAILED);
  CHECK(job.core.reason() == "worker 0: exit status 3");

  Job gathering(setup_of(1, 1));
  REQUIRE(gathering.core.lost(Role::WORKER, 0, "killed", false, gathering.now).has_value());
  CHECK(gathering.core.phase() == Phase::FAILED);
}

TEST_CASE("the loss of the last worker fails the job; of all but finished ones it does not") {
  Job job(setup_of(1, 1));
  job.run();
  REQUIRE(job.core.lost(Role::WORKER, 0, "killed by signal 9", false, job.now).has_value());
  CHECK(job.core.phase() == Phase::RUNNING);
  job.server_reports[0].resolving[0] = 3;
  job.say_server(0);
  CHECK(job.core.phase() == Phase::FAILED);
  CHECK(contains(job.core.reason(), "no worker is left: worker 0 (node, pid 1000): killed by"));

  Job two(setup_of(1, 2));
  two.run();
  REQUIRE(two.finish(0, 10).has_value());
  REQUIRE(two.core.lost(Role::WORKER, 1, "killed", false, two.now).has_value());
  two.server_reports[0].resolving[1] = 3;
  two.say_server(0);
  CHECK(two.core.phase() == Phase::DONE);
}

TEST_CASE("M7 when the last worker has finished the job is DONE") {
  Job job(setup_of(1, 2));
  job.run();
  REQUIRE(job.finish(0, 10).has_value());
  REQUIRE(job.finish(0, 10).has_value());  // a repeat
  CHECK(job.core.phase() == Phase::RUNNING);
  CHECK(job.worker_member(0).state == MemberState::FINISHED);
  CHECK(job.worker_member(0).final_clock == 10);
  job.pass(milliseconds(6'000));
  REQUIRE(job.finish(1, 12).has_value());
  CHECK(job.core.phase() == Phase::DONE);
  CHECK(job.core.reason().empty());
}

TEST_CASE("M8 a member that gives up fails the job, in one line") {
  Job job(setup_of(1, 2));
  job.run();
  REQUIRE(job.core.fault(job.worker(1), "no data\nat /data", job.now).has_value());
  CHECK(job.core.phase() == Phase::FAILED);
  CHECK(job.core.reason() == "worker 1 (node, pid 1001): no data at /data");
  REQUIRE(job.core.fault(job.worker(0), "later", job.now).has_value());
  CHECK(contains(job.core.reason(), "worker 1"));
  CHECK(job.core.status(job.now).workers.at(1).error == "no data at /data");
}

TEST_CASE("C2 the lowest live worker gives the initial values, until somebody took a step") {
  Job job(setup_of(1, 3));
  job.run();
  CHECK(job.core.view().initializer == 0);
  REQUIRE(job.core.lost(Role::WORKER, 0, "killed", false, job.now).has_value());
  CHECK(job.core.view().initializer == 1);
  job.worker_reports[2].clock = 1;
  job.say_worker(2);
  CHECK(job.core.view().initializer == -1);
  REQUIRE(job.core.lost(Role::WORKER, 1, "killed", false, job.now).has_value());
  CHECK(job.core.view().initializer == -1);
}

TEST_CASE("N8 the learning rate can change while the job runs, nothing else can") {
  Job job(setup_of(1, 1));
  job.run();
  const auto epoch = job.core.epoch();
  REQUIRE(job.core.change("learning_rate", "0.001").has_value());
  CHECK(job.core.epoch() > epoch);
  CHECK(job.core.view().settings.at("learning_rate") == "0.001");
  CHECK(job.core.status(job.now).settings.at("learning_rate") == "0.001");
  CHECK(contains(error_of(job.core.change("learning_rate", "fast")), "learning_rate"));
  CHECK(contains(error_of(job.core.change("learning_rate", "-1")), "negative"));
  // A schedule that cannot be computed is refused, and what was before stays.
  CHECK(contains(error_of(job.core.change("schedule", "cosine")), "schedule_steps"));
  REQUIRE(job.core.change("schedule_steps", "100").has_value());
  REQUIRE(job.core.change("schedule", "cosine").has_value());
  CHECK(job.core.view().settings.at("schedule") == "cosine");
  CHECK(contains(error_of(job.core.change("staleness", "3")), "what can: learning_rate"));
}

TEST_CASE("rates are those of the last seconds") {
  Job job(setup_of(1, 1));
  job.run();
  for (int i = 0; i < 40; ++i) {
    job.worker_reports[0].samples += 100;
    job.worker_reports[0].bytes_pushed += 1000;
    job.pass(milliseconds(200));
  }
  const auto status = job.core.status(job.now);
  CHECK(status.samples == 4000);
  CHECK(status.samples_per_second == doctest::Approx(500).epsilon(0.02));
  CHECK(status.workers.at(0).push_bytes_per_second == doctest::Approx(5000).epsilon(0.02));
}

}  // namespace
}  // namespace leeway::scheduler
