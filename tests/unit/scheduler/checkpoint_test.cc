// When checkpoints are taken, what is in them, and what their failure means.
#include <fmt/format.h>

#include <algorithm>

#include "job_fixture.h"

namespace leeway::scheduler {
namespace {

using rpc::CheckpointStage;
using rpc::MemberState;
using rpc::Phase;
using rpc::Role;

std::string state_text(const storage::ManifestWorker& worker) {
  return {reinterpret_cast<const char*>(worker.state.data()), worker.state.size()};
}

rpc::KeptResidual kept(const std::string& digest) {
  rpc::KeptResidual residual;
  residual.digest = digest;
  residual.bytes = 100;
  return residual;
}

// Stands still at the clock for the checkpoint that is made.
void stand(Job& job, std::int32_t worker, std::int64_t clock) {
  job.worker_reports[worker].clock = clock;
  job.worker_reports[worker].paused = job.core.view().checkpoint.id;
  job.say_worker(worker);
}

TEST_CASE("with residuals workers stand still, all at one clock, before servers hold") {
  Job job(with_directory(setup_of(1, 3, {{"gradient_codec", "topk"}, {"update", "per_clock"}})));
  job.run();
  job.worker_reports[2].residuals = {
      {"end-" + std::to_string(job.worker(2).incarnation), kept("last")}};
  REQUIRE(job.finish(2, 6));
  const auto id = job.core.checkpoint(job.now);
  REQUIRE(id);
  CHECK(job.core.view().checkpoint.stage == CheckpointStage::PAUSE);
  stand(job, 0, 5);
  stand(job, 1, 4);
  rpc::CheckpointOrder order = job.core.view().checkpoint;
  CHECK(order.stage == CheckpointStage::PAUSE);
  CHECK(order.clocks == std::map<std::int32_t, std::int64_t>{{0, 6}, {1, 6}});
  job.say_worker(1);  // from before it heard
  stand(job, 0, 6);
  CHECK(job.core.view().checkpoint.stage == CheckpointStage::PAUSE);
  job.worker_reports[1].paused.clear();
  job.worker_reports[1].clock = 5;
  job.say_worker(1);
  CHECK(job.core.view().checkpoint.stage == CheckpointStage::PAUSE);
  stand(job, 1, 6);
  CHECK(job.core.view().checkpoint.stage == CheckpointStage::HOLD);
  job.server_reports[0].applied = {{0, 5}, {1, 5}, {2, 5}};
  job.hold_all();
  order = job.core.view().checkpoint;
  CHECK(order.stage == CheckpointStage::CUT);
  CHECK(order.clocks == std::map<std::int32_t, std::int64_t>{{0, 6}, {1, 6}, {2, 6}});

  // Worker 2 kept its last before it finished, worker 1 dies with its own.
  job.worker_reports[2].residuals.clear();
  job.say_worker(2);  // from before
  job.durable_all();
  CHECK_FALSE(job.core.take_effects().commit);
  job.worker_reports[0].residuals = {{*id, kept("zero")}};
  job.say_worker(0);
  CHECK_FALSE(job.core.take_effects().commit);
  REQUIRE(job.core.lost(Role::WORKER, 1, "killed", false, job.now));
  const auto effects = job.core.take_effects();
  REQUIRE(effects.commit);
  CHECK(effects.commit->workers.at(0).residual->shard == *id);
  CHECK(effects.commit->workers.at(0).residual->digest == "zero");
  CHECK_FALSE(effects.commit->workers.at(1).residual);
  CHECK(effects.commit->workers.at(2).residual->digest == "last");
  CHECK(effects.commit->bytes == 10 + 200);
  CHECK(std::ranges::any_of(effects.log, [](const std::string& line) {
    return contains(line, "has no residual of worker 1");
  }));
}

TEST_CASE("those behind are sent on before the one in front stands, and though it dies") {
  Job job(with_directory(setup_of(1, 2, {{"gradient_codec", "topk"}, {"update", "per_clock"}})));
  job.run();
  // Its step 5 waits for a slab that is kept for worker 1's step 4.
  job.worker_reports[0].clock = 6;
  job.say_worker(0);
  REQUIRE(job.core.checkpoint(job.now));
  stand(job, 1, 4);
  CHECK(job.core.view().checkpoint.stage == CheckpointStage::PAUSE);
  const std::map<std::int32_t, std::int64_t> ordered = {{1, 6}};
  CHECK(job.core.view().checkpoint.clocks == ordered);
  REQUIRE(job.core.lost(Role::WORKER, 0, "killed", false, job.now));
  stand(job, 1, 5);
  CHECK(job.core.view().checkpoint.stage == CheckpointStage::PAUSE);
  CHECK(job.core.view().checkpoint.clocks == ordered);
  stand(job, 1, 6);
  CHECK(job.core.view().checkpoint.stage == CheckpointStage::HOLD);
}

TEST_CASE("a checkpoint for which workers do not come to a stand is given up") {
  Job job(with_directory(
      setup_of(1, 3, {{"gradient_codec", "topk"}, {"update", "per_clock"}, {"min_workers", "3"}})));
  job.run();
  auto id = job.core.checkpoint(job.now);
  stand(job, 0, 4);
  stand(job, 2, 4);
  job.pass(milliseconds(300'000));
  CHECK(job.core.view().checkpoint.stage == CheckpointStage::PAUSE);
  job.pass(milliseconds(1'000));
  CHECK(contains(job.core.outcome(*id).value().error().message,
                 "worker 1 did not come to a stand within 300 s"));
  CHECK(job.core.phase() == Phase::RUNNING);
  // Those that are sent on get no weights when somebody is missing.
  id = job.core.checkpoint(job.now);
  stand(job, 0, 5);
  CHECK(job.core.view().checkpoint.clocks.at(1) == 5);
  REQUIRE(job.core.lost(Role::WORKER, 2, "killed", false, job.now));
  CHECK(contains(job.core.outcome(*id).value().error().message,
                 "fewer than min_workers are left, and those behind get no weights"));
  CHECK(job.core.phase() == Phase::RUNNING);
}

TEST_CASE("under per_push, or with a quorum, each worker stands where it is") {
  for (const SettingValues& settings :
       {SettingValues{{"gradient_codec", "topk"}, {"update", "per_push"}},
        SettingValues{{"gradient_codec", "topk"}, {"update", "per_clock"}, {"quorum", "1"}}}) {
    Job job(with_directory(setup_of(1, 2, settings)));
    job.run();
    REQUIRE(job.core.checkpoint(job.now));
    stand(job, 0, 9);
    stand(job, 1, 4);
    CHECK(job.core.view().checkpoint.stage == CheckpointStage::HOLD);
    job.server_reports[0].applied = {{0, 8}, {1, 4}};
    job.hold_all();
    CHECK(job.core.view().checkpoint.clocks ==
          std::map<std::int32_t, std::int64_t>{{0, 9}, {1, 4}});
  }
}

TEST_CASE("a residual that cannot be written costs its checkpoint alone") {
  Job job(with_directory(setup_of(1, 1, {{"gradient_codec", "topk"}})));
  job.run();
  const auto id = job.core.checkpoint(job.now);
  stand(job, 0, 3);
  job.server_reports[0].applied = {{0, 3}};
  job.hold_all();
  job.worker_reports[0].residuals[*id].error = "the disk is full";
  job.say_worker(0);
  CHECK(contains(job.core.outcome(*id).value().error().message, "worker 0: the disk is full"));
  CHECK(job.core.view().checkpoint.stage == CheckpointStage::NONE);
  CHECK(job.core.phase() == Phase::RUNNING);
  REQUIRE(job.core.checkpoint(job.now));
  stand(job, 0, 4);
  CHECK(job.core.view().checkpoint.stage == CheckpointStage::HOLD);
}

TEST_CASE("HOLD, CUT at the largest applied clocks, durable, commit") {
  Job job(with_directory(setup_of(2, 2)));
  job.run();
  job.server_reports[0].applied = {{0, 7}, {1, 4}};
  job.server_reports[1].applied = {{0, 6}, {1, 5}};
  const auto id = job.core.checkpoint(job.now);
  REQUIRE(id.has_value());
  CHECK(*id == "000001");
  CHECK(job.core.view().checkpoint.stage == CheckpointStage::HOLD);
  CHECK(job.core.checkpoint(job.now).value() == *id);  // joins the one that is made
  job.server_reports[0].held = *id;
  job.say_server(0);
  CHECK(job.core.view().checkpoint.stage == CheckpointStage::HOLD);
  job.server_reports[1].held = *id;
  job.say_server(1);
  rpc::CheckpointOrder order = job.core.view().checkpoint;
  CHECK(order.stage == CheckpointStage::CUT);
  CHECK(order.id == *id);
  CHECK(order.clocks == std::map<std::int32_t, std::int64_t>{{0, 7}, {1, 5}});
  job.server_reports[0].worker_states = {{0, "scale 8"}, {1, "scale 2"}};
  job.server_reports[0].durable = *id;
  job.say_server(0);
  CHECK_FALSE(job.core.take_effects().commit.has_value());
  CHECK_FALSE(job.core.outcome(*id).has_value());
  job.durable_all();
  const auto commit = job.core.take_effects().commit;
  REQUIRE(commit.has_value());
  CHECK_FALSE(job.core.outcome(*id).has_value());
  CHECK(job.core.checkpoints().empty());
  job.core.committed(*commit, {}, job.now);
  CHECK(job.core.outcome(*id).value().has_value());
  CHECK(job.core.checkpoints().size() == 1);
  CHECK(job.core.view().checkpoint.stage == CheckpointStage::NONE);

  CHECK(commit->id == *id);
  CHECK(commit->tensors.at(1).name == "weight");
  CHECK(commit->state_arrays == 1);
  CHECK(commit->shard_digests == std::vector<std::string>{"digest 0", "digest 1"});
  CHECK(commit->bytes == 20);
  CHECK(commit->workers.at(0).clock == Clock(7));
  CHECK(commit->workers.at(1).clock == Clock(5));
  CHECK(state_text(commit->workers.at(0)) == "scale 8");
  CHECK(commit->settings.at("optimizer") == "momentum");
}

TEST_CASE("checkpoint_every counts what the slowest worker has applied; checkpoint_keep forgets") {
  Job job(with_directory(setup_of(1, 2, {{"checkpoint_every", "10"}, {"checkpoint_keep", "2"}})));
  job.run();
  job.server_reports[0].applied = {{0, 40}, {1, 9}};
  job.say_server(0);
  CHECK(job.core.view().checkpoint.stage == CheckpointStage::NONE);
  job.server_reports[0].applied[1] = 12;
  job.say_server(0);
  CHECK(job.save().id == "000001");
  job.applied(19);
  CHECK(job.core.view().checkpoint.stage == CheckpointStage::NONE);
  job.applied(20);
  CHECK(job.save().id == "000002");
  CHECK(job.core.take_effects().forget.empty());
  job.applied(55);
  CHECK(job.save().id == "000003");
  CHECK(job.core.take_effects().forget == std::vector<std::string>{"000001"});
  job.applied(59);
  CHECK(job.core.view().checkpoint.stage == CheckpointStage::NONE);
  CHECK(job.core.checkpoints().front().id == "000002");
}

TEST_CASE("M7 at the natural end the last checkpoint has every committed step, then DONE") {
  Job job(with_directory(setup_of(2, 2)));
  job.run();
  REQUIRE(job.finish(0, 10).has_value());
  REQUIRE(job.finish(1, 12).has_value());
  CHECK(job.core.phase() == Phase::RUNNING);
  job.server_reports[0].applied = {{0, 10}, {1, 11}};
  job.server_reports[1].applied = {{0, 9}, {1, 11}};
  job.hold_all();
  CHECK(job.core.view().checkpoint.clocks ==
        std::map<std::int32_t, std::int64_t>{{0, 10}, {1, 12}});
  job.durable_all();
  const auto commit = job.core.take_effects().commit;
  REQUIRE(commit.has_value());
  CHECK(job.core.phase() == Phase::RUNNING);
  job.core.committed(*commit, {}, job.now);
  CHECK(job.core.phase() == Phase::DONE);
}

TEST_CASE("a graceful stop saves while all still train, then stops them") {
  Job job(with_directory(setup_of(1, 2)));
  job.run();
  job.core.stop("Ctrl-C", job.now);
  CHECK(job.core.phase() == Phase::RUNNING);
  job.applied(8);
  job.save();
  CHECK(job.core.phase() == Phase::STOPPING);
  CHECK(job.core.reason() == "Ctrl-C");
  REQUIRE(job.finish(0, 9).has_value());
  REQUIRE(job.core.lost(Role::WORKER, 1, "killed by signal 2", false, job.now).has_value());
  CHECK(job.core.phase() == Phase::STOPPING);
  job.server_reports[0].resolving[1] = 9;
  job.say_server(0);
  CHECK(job.core.phase() == Phase::DONE);
  CHECK(job.core.view().checkpoint.stage == CheckpointStage::NONE);

  Job bare(setup_of(1, 1));
  bare.run();
  bare.core.stop("Ctrl-C", bare.now);
  CHECK(bare.core.phase() == Phase::STOPPING);
}

TEST_CASE("a stop takes the checkpoint that is already being made") {
  Job job(with_directory(setup_of(1, 1)));
  job.run();
  REQUIRE(job.core.checkpoint(job.now).has_value());
  job.core.stop("Ctrl-C", job.now);
  job.save();
  CHECK(job.core.phase() == Phase::STOPPING);
}

TEST_CASE("a server that cannot write: that checkpoint is given up and the job goes on") {
  Job job(with_directory(setup_of(2, 1)));
  job.run();
  const auto id = job.core.checkpoint(job.now);
  REQUIRE(id.has_value());
  job.server_reports[1].held = "000000";
  job.server_reports[1].checkpoint_error = "of an older one";
  job.say_server(1);
  CHECK(job.core.view().checkpoint.stage == CheckpointStage::HOLD);
  job.server_reports[1].held = *id;
  job.server_reports[1].checkpoint_error = "disk full";
  job.say_server(1);
  CHECK(job.core.view().checkpoint.stage == CheckpointStage::NONE);
  CHECK(job.core.phase() == Phase::RUNNING);
  REQUIRE(job.core.outcome(*id).has_value());
  CHECK(error_of(*job.core.outcome(*id)) == "checkpoint 000001 was given up: server 1: disk full");
  job.server_reports[1].checkpoint_error.clear();
  CHECK(job.core.checkpoint(job.now).value() == "000002");
  job.save();
}

TEST_CASE("a last checkpoint that fails, fails the job with the reason") {
  Job job(with_directory(setup_of(1, 1)));
  job.run();
  REQUIRE(job.finish(0, 5).has_value());
  job.hold_all();
  job.server_reports[0].checkpoint_error = "disk full";
  job.say_server(0);
  CHECK(job.core.phase() == Phase::FAILED);
  CHECK(contains(job.core.reason(), "server 0: disk full"));

  Job commit(with_directory(setup_of(1, 1)));
  commit.run();
  commit.core.stop("Ctrl-C", commit.now);
  commit.hold_all();
  commit.durable_all();
  const auto effects = commit.core.take_effects();
  REQUIRE(effects.commit.has_value());
  commit.core.committed(*effects.commit, fail(Code::kResourceExhausted, "no space"), commit.now);
  CHECK(commit.core.phase() == Phase::FAILED);
  CHECK(contains(commit.core.reason(), "no space"));
  CHECK(commit.core.checkpoints().empty());
}

TEST_CASE("a worker that dies in a checkpoint is resolved first and does not block it") {
  Job job(with_directory(setup_of(2, 2)));
  job.run();
  const auto id = job.core.checkpoint(job.now);
  REQUIRE(id.has_value());
  REQUIRE(job.core.lost(Role::WORKER, 1, "killed", false, job.now).has_value());
  job.server_reports[0].applied = {{0, 5},
                                   {1, 6}};  // its last step was abandoned, and counted here
  job.server_reports[1].applied = {{0, 5}, {1, 5}};
  job.hold_all();
  CHECK(job.core.view().checkpoint.stage == CheckpointStage::HOLD);
  job.server_reports[0].resolving[1] = 5;
  job.server_reports[1].resolving[1] = 5;
  job.say_server(0);
  job.say_server(1);
  CHECK(job.core.view().checkpoint.stage == CheckpointStage::CUT);
  CHECK(job.core.view().checkpoint.clocks.at(1) == 5);
  REQUIRE(job.core.lost(Role::WORKER, 0, "killed", false, job.now).has_value());
  job.server_reports[0].resolving[0] = job.server_reports[1].resolving[0] = 5;
  job.say_server(0);
  job.say_server(1);
  CHECK(job.core.phase() == Phase::FAILED);
  CHECK(job.core.outcome(*id).has_value());
}

TEST_CASE("a server that never holds costs the checkpoint, not the job") {
  Job job(with_directory(setup_of(2, 1)));
  job.run();
  const auto id = job.core.checkpoint(job.now);
  REQUIRE(id.has_value());
  job.server_reports[0].held = *id;
  job.pass(milliseconds(61'000));
  REQUIRE(job.core.outcome(*id).has_value());
  CHECK(contains(error_of(*job.core.outcome(*id)), "server 1 did not hold"));
  CHECK(job.core.phase() == Phase::RUNNING);
}

TEST_CASE("a lost server ends the checkpoint with the job") {
  Job job(with_directory(setup_of(2, 1)));
  job.run();
  const auto id = job.core.checkpoint(job.now);
  REQUIRE(job.core.lost(Role::SERVER, 1, "killed", false, job.now).has_value());
  CHECK(contains(error_of(*job.core.outcome(*id)), "the job failed: lost server 1"));
  CHECK(job.core.view().checkpoint.stage == CheckpointStage::NONE);
}

TEST_CASE("checkpoints are refused where there is nowhere or nothing to save") {
  Job bare(setup_of(1, 1));
  bare.run();
  CHECK(contains(error_of(bare.core.checkpoint(bare.now)), "--checkpoint-dir"));
  Job early(with_directory(setup_of(1, 1)));
  early.plan();
  CHECK(contains(error_of(early.core.checkpoint(early.now)), "PLANNED"));
}

storage::Manifest saved_by_two_workers() {
  Job job(with_directory(setup_of(1, 3)));
  job.run();
  REQUIRE(job.core.lost(Role::WORKER, 2, "killed", false, job.now).has_value());
  job.server_reports[0].resolving[2] = 1;
  job.server_reports[0].applied = {{0, 7}, {1, 6}, {2, 1}};
  job.server_reports[0].worker_states = {{0, "zero"}, {1, "one"}, {2, "two"}};
  job.say_server(0);
  REQUIRE(job.core.checkpoint(job.now).has_value());
  return job.save();
}

TEST_CASE("a restored job goes on where each worker was; in a dead one's place with the slowest") {
  JobSetup setup = with_directory(setup_of(2, 3, {{"checkpoint_every", "5"}}));
  setup.history = {saved_by_two_workers()};
  // Shards hold a record of it, too: the manifest knows everybody.
  REQUIRE(setup.history[0].workers.contains(2));
  CHECK(setup.history[0].workers.at(2).clock == Clock(6));
  CHECK(setup.history[0].workers.at(2).state.empty());
  setup.restore = "000001";
  Job job(setup);
  job.run();
  const auto plan = job.core.plan(job.worker(0));
  REQUIRE(plan.has_value());
  CHECK(plan->restore == "000001");
  CHECK(plan->progress.at(0).clock == 7);
  CHECK(plan->progress.at(0).state == "zero");
  CHECK(plan->progress.at(1).clock == 6);
  CHECK(plan->progress.at(2).clock == 6);
  CHECK(plan->progress.at(2).state.empty());
  CHECK(job.core.view().initializer == -1);
  job.applied(9);
  CHECK(job.core.view().checkpoint.stage == CheckpointStage::NONE);
  job.applied(10);
  CHECK(job.core.view().checkpoint.id == "000002");
}

TEST_CASE("a checkpoint of another number of workers is refused at start") {
  for (const std::uint32_t workers : {2u, 4u}) {
    JobSetup setup = with_directory(setup_of(1, workers));
    setup.history = {saved_by_two_workers()};
    JobCore(setup, TimePoint{});  // starts anew beside it
    setup.restore = "000001";
    CHECK_THROWS_WITH_AS(
        JobCore(setup, TimePoint{}),
        fmt::format("checkpoint 000001 is of 3 workers and this job has {}; resume "
                    "with --workers 3, or start anew with --resume never",
                    workers)
            .c_str(),
        ConfigError);
  }
}

TEST_CASE("a checkpoint of another model is refused by the tensor's name") {
  JobSetup setup = with_directory(setup_of(1, 3));
  setup.history = {saved_by_two_workers()};
  setup.restore = "000001";
  Job job(setup);
  job.join_all();
  rpc::Model model = small_model();
  model.tensors[1].shape = {101};
  const std::string text = error_of(job.core.declare(job.worker(0), model, job.now));
  CHECK(contains(text, "'bias' has shape (100,) in checkpoint 000001 and (101,)"));
  model = small_model();
  model.settings["optimizer"] = "adam";
  CHECK(contains(error_of(job.core.declare(job.worker(0), model, job.now)),
                 "optimizer = momentum and this run has optimizer = adam"));
  model.settings["optimizer"] = "nesterov";  // as many arrays, of another meaning
  CHECK(contains(error_of(job.core.declare(job.worker(0), model, job.now)),
                 "this run has optimizer = nesterov"));
  CHECK(job.core.declare(job.worker(0), small_model(), job.now).has_value());

  setup.restore = "000009";
  CHECK_THROWS_WITH_AS(JobCore(setup, job.now),
                       "there is no checkpoint '000009' in checkpoints; it has 000001",
                       ConfigError);
}

}  // namespace
}  // namespace leeway::scheduler
