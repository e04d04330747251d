// Workers that join a job which trains: in the place of one that died, and as one more.
#include <doctest/doctest.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "tests/cluster/job.h"

namespace leeway::cluster {
namespace {

nlohmann::json status_of(Job& job) {
  const CommandResult result =
      run_command({"leeway-admin", "--scheduler", job.scheduler_address(), "--json", "status"});
  return nlohmann::json::parse(result.output);
}

// leeway-run worker, as a person would start it beside the job; runs to its end.
CommandResult join(Job& job, std::vector<std::string> program,
                   std::vector<std::string> flags = {}) {
  std::vector<std::string> command = {"leeway-run", "worker", "--job",
                                      (job.directory() / "logs").string()};
  command.insert(command.end(), flags.begin(), flags.end());
  command.emplace_back("--");
  command.insert(command.end(), program.begin(), program.end());
  return run_command(command);
}

// Steps of 5 ms, each of which is said.
std::vector<std::string> stepping(int steps) {
  return {"small_worker", "--steps", std::to_string(steps), "--step-ms", "5", "--print-steps"};
}

// Of a job with min_workers that lacks one: it waits, and goes on when one has joined.
void goes_on_when_one_joins(Job& job, const std::vector<std::string>& program) {
  job.wait_for("waiting up to rejoin_timeout_ms");
  const CommandResult joined = join(job, program);
  CHECK_MESSAGE(joined.exit_code == 0, joined.output);
  const JobResult& result = job.finish(seconds(60));
  REQUIRE_MESSAGE(result.exit_code == 0, result.output);
  CHECK(result.output.find("training goes on") != std::string::npos);
  CHECK(result.summary.violations == 0);
}

}  // namespace

TEST_SUITE_BEGIN("joins");

TEST_CASE("C5: the slowest worker is killed, one joins in its place, and training goes on") {
  for (const std::string update : {"per_push", "per_clock"}) {
    CAPTURE(update);
    Job job;
    job.servers(2).workers(3).flag("--staleness", "2").flag("--update", update);
    job.flag("--inject", "slow:worker=1,factor=10");
    const auto program = stepping(400);
    job.program(program);
    job.start();
    job.wait_for("[worker.1] step 5\n");
    job.kill_member("worker.1", SIGKILL);
    const CommandResult joined = join(job, program);
    CHECK_MESSAGE(joined.exit_code == 0, joined.output);
    CHECK(joined.output.find("worker 1 of 3 joined") != std::string::npos);
    CHECK(joined.output.find("step 400\n") != std::string::npos);  // it did steps of its own
    CHECK(joined.output.find("step 2\n") == std::string::npos);    // from a later clock on
    const JobResult& result = job.finish(seconds(60));
    REQUIRE_MESSAGE(result.exit_code == 0, result.output);
    CHECK(result.output.find("joins at clock ") != std::string::npos);
    CHECK(result.summary.violations == 0);
    CHECK(result.summary.max_observed <= 2);
    CHECK(result.summary.steps > 800);
    CHECK(result.summary.steps < 1200);
  }
}

TEST_CASE("one worker more joins where the job has room, and a further one is refused") {
  Job job;
  job.servers(2).workers(2).flag("--max-workers", "3").flag("--update", "per_clock");
  const auto program = stepping(300);
  job.program(program);
  job.start();
  job.wait_for("[worker.0] step 5\n");
  const std::vector<std::string> endless = {"small_worker", "--steps", "300", "--step-ms", "5"};
  CommandResult more;
  std::jthread third([&] { more = join(job, endless); });
  job.wait_for("joins at clock ");
  const auto status = status_of(job);
  CHECK(status.at("places") == 3);
  REQUIRE(status.at("workers").size() == 3);
  CHECK(status.at("workers")[2].at("state") == "LIVE");
  CHECK(status.at("workers")[2].at("first_clock").get<long>() > 0);
  const CommandResult fourth = join(job, endless);
  CHECK(fourth.exit_code != 0);
  CHECK(fourth.output.find("the job is full: workers 0 to 2") != std::string::npos);
  const CommandResult twice = join(job, endless, {"--rank", "0"});
  CHECK(twice.exit_code != 0);
  CHECK(twice.output.find("is here already and alive") != std::string::npos);
  third.join();
  CHECK_MESSAGE(more.exit_code == 0, more.output);
  const JobResult& result = job.finish(seconds(60));
  REQUIRE_MESSAGE(result.exit_code == 0, result.output);
  CHECK(result.summary.steps > 600);
  CHECK(result.summary.violations == 0);
}

TEST_CASE("M8: a joiner with another model or token is refused, and the job trains on") {
  Job job;
  job.servers(1).workers(2).flag("--max-workers", "3");
  job.program(stepping(200));
  job.start();
  job.wait_for("[worker.0] step 5\n");
  const CommandResult other = join(job, {"small_worker", "--shapes", "a=4x4", "--steps", "200"});
  CHECK(other.exit_code != 0);
  CHECK(other.output.find("tensor 'a' has shape") != std::string::npos);
  const CommandResult stranger = run_command(
      {"leeway-run", "worker", "--scheduler", job.scheduler_address(), "--", "small_worker"},
      {{"LEEWAY_TOKEN", "wrong"}});
  CHECK(stranger.exit_code != 0);
  CHECK(stranger.output.find("not the job's token") != std::string::npos);
  const JobResult& result = job.finish(seconds(60));
  REQUIRE_MESSAGE(result.exit_code == 0, result.output);
  CHECK(result.summary.steps == 400);
}

TEST_CASE("M3: below min_workers training waits, and goes on when one joins") {
  Job job;
  job.servers(2).workers(2).set("min_workers", "2").flag("--staleness", "inf");
  const auto program = stepping(200);
  job.program(program);
  job.start();
  job.wait_for("[worker.0] step 20\n");
  job.kill_member("worker.1", SIGKILL);
  job.wait_for("waiting up to rejoin_timeout_ms");
  CHECK(job.output().find("[worker.0] step 200\n") == std::string::npos);
  goes_on_when_one_joins(job, program);
}

TEST_CASE("C5 M3: below min_workers what the dead one was ahead does not keep its place taken") {
  Job job;
  job.servers(2).workers(2).set("min_workers", "2").flag("--staleness", "2");
  job.flag("--update", "per_clock").flag("--inject", "slow:worker=0,factor=10");
  const auto program = stepping(60);
  job.program(program);
  job.start();
  job.wait_for("[worker.1] step 5\n");
  job.kill_member("worker.1", SIGKILL);
  goes_on_when_one_joins(job, program);
}

TEST_CASE("M3: without any worker left a job with min_workers waits for one") {
  Job job;
  job.servers(1).workers(1).set("min_workers", "1");
  const auto program = stepping(60);
  job.program(program);
  job.start();
  job.wait_for("[worker.0] step 20\n");
  job.kill_member("worker.0", SIGKILL);
  const CommandResult joined = join(job, program, {"--rank", "0"});
  CHECK_MESSAGE(joined.exit_code == 0, joined.output);
  const JobResult& result = job.finish(seconds(60));
  REQUIRE_MESSAGE(result.exit_code == 0, result.output);
}

TEST_SUITE_END();

}  // namespace leeway::cluster
