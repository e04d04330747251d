// Members that are killed, stopped or fail, and Ctrl-C.
#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>

#include "tests/cluster/job.h"

namespace leeway::cluster {
namespace {

std::vector<std::string> slow_program(const std::string& steps = "400") {
  std::vector<std::string> command = {"small_worker", "--steps",       steps,      "--step-ms",
                                      "10",           "--print-steps", "--shapes", "a=100x3",
                                      "b=50",         "c=7",           "d=1000x20"};
  return command;
}

const JobResult& fail(Job& job, const JobResult& result, const std::string& reason) {
  (void)job;
  CHECK_MESSAGE(result.exit_code == 1, result.output);
  REQUIRE(!result.summary.text.empty());
  CHECK(result.summary.result == "failed");
  CHECK_MESSAGE(result.summary.reason.find(reason) != std::string::npos, result.summary.reason);
  CHECK(result.output.find("leeway-run: FAILED: ") != std::string::npos);
  return result;
}

// The lines "weights NAME FIRST LAST HASH" of one worker, sorted.
std::vector<std::string> final_weights(const std::string& output, const std::string& worker) {
  std::vector<std::string> lines;
  const std::string prefix = "[" + worker + "] weights ";
  for (std::size_t at = 0; (at = output.find(prefix, at)) != std::string::npos; ++at)
    lines.push_back(output.substr(at + prefix.size(), output.find('\n', at) - at - prefix.size()));
  std::sort(lines.begin(), lines.end());
  return lines;
}

}  // namespace

TEST_SUITE_BEGIN("cluster");

TEST_CASE("M9: a worker killed between two pushes leaves no trace of the step") {
  // Every step of every worker subtracts 1 from every element, so the sum says what was applied.
  Job job;
  job.servers(3).workers(3).flag("--staleness", "2").flag("--update", "per_push");
  job.set("optimizer", "sgd").set("learning_rate", "1").set("pull_dtype", "f32");
  job.program({"small_worker", "--steps", "30", "--shapes", "a=4", "b=4", "c=3000x50", "d=4", "e=9",
               "f=20x3", "--kill-between-rank", "1", "--kill-between-step", "7"});
  const JobResult& result = job.run();
  REQUIRE_MESSAGE(result.exit_code == 0, result.output);
  CHECK(result.summary.exit_codes.at("worker.1") == -SIGKILL);
  CHECK(result.output.find("worker.1 was killed by SIGKILL") != std::string::npos);
  const auto weights = final_weights(result.output, "worker.0");
  REQUIRE(weights.size() == 6);
  for (const std::string& line : weights)  // 30 + 30 + the 7 that worker 1 committed
    CHECK_MESSAGE(line.find(" -67 -67 ") != std::string::npos, line);
}

TEST_CASE("a worker killed from outside does not fail the job") {
  Job job;
  job.servers(2).workers(3).flag("--staleness", "1").program(slow_program());
  job.start();
  job.wait_for("[worker.2] step 20");
  job.kill_member("worker.2", SIGKILL);
  const JobResult& result = job.finish();
  CHECK_MESSAGE(result.exit_code == 0, result.output);
  CHECK(result.summary.exit_codes.at("worker.2") == -SIGKILL);
  CHECK(result.summary.violations == 0);
}

TEST_CASE("a worker that exits with an error fails the job, with its last words") {
  Job job;
  job.servers(1).workers(2).program({"/bin/sh", "-c", "echo the disk is full >&2; exit 3"});
  fail(job, job.run(), "the disk is full");
}

TEST_CASE("a program that never joins fails the job") {
  Job job;
  job.servers(1).workers(1).program({"/bin/true"});
  fail(job, job.run(), "finish");
}

TEST_CASE("M1: a killed server ends the job with the cause, and --resume auto goes on") {
  const TemporaryDirectory checkpoints;
  {
    Job job;
    job.servers(2).workers(2).checkpoints(checkpoints.path()).set("checkpoint_every", "10");
    job.program(slow_program());
    job.start();
    job.wait_for("[worker.0] step 60");
    job.kill_member("server.1", SIGKILL);
    const JobResult& result = fail(job, job.finish(), "was killed by SIGKILL");
    CHECK(result.summary.reason.find("server") == 0);
    CHECK(!result.summary.last_checkpoint.empty());
  }
  Job job;
  job.servers(3).workers(2).checkpoints(checkpoints.path()).flag("--resume", "auto");
  job.program(slow_program());
  const JobResult& result = job.run();
  REQUIRE_MESSAGE(result.exit_code == 0, result.output);
  CHECK(result.summary.steps < 800);
  CHECK(result.summary.steps > 0);
}

TEST_CASE("--max-restarts starts the job again by itself") {
  const TemporaryDirectory checkpoints;
  Job job;
  job.servers(2).workers(2).checkpoints(checkpoints.path()).set("checkpoint_every", "10");
  job.flag("--max-restarts", "1").flag("--inject", "kill:server=1,at_step=60");
  job.program(slow_program());
  const JobResult& result = job.run();
  REQUIRE_MESSAGE(result.exit_code == 0, result.output);
  CHECK(result.summary.result == "ok");
  CHECK(result.summary.restarts == 1);
  CHECK(result.summary.steps == 800 + result.summary.repeated_steps);
}

TEST_CASE("M2: a killed scheduler ends the job with the cause") {
  Job job;
  job.servers(2).workers(2).program(slow_program());
  job.start();
  job.wait_for("[worker.0] step 20");
  job.kill_member("scheduler", SIGKILL);
  fail(job, job.finish(seconds(20)), "scheduler was killed by SIGKILL");
}

TEST_CASE("when every worker is killed the job has failed") {
  Job job;
  job.servers(1).workers(2).program(slow_program());
  job.start();
  job.wait_for("[worker.0] step 5");
  job.kill_member("worker.0", SIGKILL);
  job.kill_member("worker.1", SIGKILL);
  const JobResult& result = job.finish(seconds(20));
  CHECK_MESSAGE(result.exit_code == 1, result.output);
  CHECK(result.summary.exit_codes.at("worker.0") == -SIGKILL);
}

TEST_CASE("M3: Ctrl-C ends everything within two seconds, whatever the phase") {
  for (const std::string when : {"scheduler at ", "[worker.1] step 20"}) {
    CAPTURE(when);
    Job job;
    job.servers(2).workers(3).program(slow_program());
    job.start();
    job.wait_for(when);
    const auto pressed = std::chrono::steady_clock::now();
    job.kill_member("leeway-run", SIGINT);
    const JobResult& result = job.finish(seconds(10));
    CHECK(std::chrono::steady_clock::now() - pressed < std::chrono::milliseconds(2500));
    CHECK_MESSAGE(result.exit_code == 130, result.output);
    CHECK(result.summary.reason == "interrupted");
  }
}

TEST_CASE("M3: a reader that stands still stops neither the job nor a Ctrl-C") {
  const auto started = std::chrono::steady_clock::now();
  Job job;
  job.program({"/bin/sh", "-c", "while :; do echo many words that nobody reads; done"});
  job.start();
  job.wait_for("[worker.0] ");
  job.stop_reading();
  const auto log = job.directory() / "logs" / "worker.0.log";
  const auto enough = std::filesystem::file_size(log) + (4 << 20);  // more than any pipe holds
  const auto deadline = std::chrono::steady_clock::now() + seconds(30);
  while (std::filesystem::file_size(log) < enough && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(std::filesystem::file_size(log) >= enough);
  const std::chrono::duration<double> pressed = std::chrono::steady_clock::now() - started;
  job.kill_member("leeway-run", SIGINT);
  const JobResult& result = job.finish(seconds(10));
  CHECK(result.seconds - pressed.count() < 2.5);
  CHECK(result.exit_code == 130);
}

TEST_CASE("leeway-run killed with -9 leaves no process") {
  Job job;
  job.servers(2).workers(2).program({"/bin/sh", "-c", "sleep 300 & sleep 300"});
  job.start();
  job.wait_for("scheduler at ");
  job.kill_member("leeway-run", SIGKILL);
  CHECK(job.finish(seconds(10)).exit_code == -SIGKILL);  // and finish() looks for processes
}

TEST_CASE("O2: an injected pause is ended by leeway-run and the job goes on") {
  Job job;
  job.servers(1).workers(2).flag("--inject", "pause:worker=0,at_step=10,seconds=1");
  job.program(slow_program("40"));
  const JobResult& result = job.run();
  CHECK_MESSAGE(result.exit_code == 0, result.output);
  CHECK(result.output.find("worker.0 is paused for 1 s") != std::string::npos);
  CHECK(result.output.find("worker.0 goes on") != std::string::npos);
}

TEST_SUITE_END();

}  // namespace leeway::cluster
