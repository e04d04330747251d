// Whole jobs on each fabric that every machine has, under what users of such systems reported.
#include <doctest/doctest.h>

#include <chrono>
#include <csignal>

#include "tests/cluster/job.h"

namespace leeway::fault {
namespace {

using namespace cluster;

// The lines "weights NAME FIRST LAST HASH" of a worker: how many, and whether each is -`sum` at
// both ends.
void check_weights(const JobResult& result, std::size_t tensors, long sum) {
  const std::string prefix = "[worker.0] weights ";
  const std::string wanted = " -" + std::to_string(sum) + " -" + std::to_string(sum) + " ";
  std::size_t lines = 0;
  for (std::size_t place = 0; (place = result.output.find(prefix, place)) != std::string::npos;
       ++place, ++lines) {
    const std::string line = result.output.substr(place, result.output.find('\n', place) - place);
    CHECK_MESSAGE(line.find(wanted) != std::string::npos, line);
  }
  CHECK(lines == tensors);
}

Job& exact(Job& job) {  // every step of every worker takes 1 from every element
  return job.set("optimizer", "sgd").set("learning_rate", "1").set("pull_dtype", "f32");
}

const char* const kFabrics[] = {"tcp", "shm"};

}  // namespace

TEST_CASE("T7: every worker pushes and pulls 64 MiB at once") {
  for (const std::string fabric : kFabrics) {
    CAPTURE(fabric);
    Job job;
    job.servers(2).workers(3).flag("--fabric", fabric).flag("--update", "per_push");
    exact(job).program({"small_worker", "--steps", "2", "--shapes", "a=4096x4096", "b=4096x4000"});
    const JobResult& result = job.run();
    REQUIRE_MESSAGE(result.exit_code == 0, result.output);
    check_weights(result, 2, 6);
  }
}

TEST_CASE("T4: a program that starts helper processes while it trains goes on, and rightly") {
  for (const std::string fabric : kFabrics) {
    CAPTURE(fabric);
    Job job;
    job.servers(2).workers(2).flag("--fabric", fabric).flag("--update", "per_push");
    exact(job).program(
        {"small_worker", "--steps", "20", "--shapes", "a=1000x300", "b=7", "--start-helpers"});
    const JobResult& result = job.run();
    REQUIRE_MESSAGE(result.exit_code == 0, result.output);
    check_weights(result, 2, 40);
  }
}

TEST_CASE("T5: a server killed while workers push ends the job with the cause, in bounded time") {
  for (const std::string fabric : kFabrics) {
    CAPTURE(fabric);
    Job job;
    job.servers(2).workers(3).flag("--fabric", fabric);
    job.program({"small_worker", "--steps", "1000", "--print-steps", "--shapes", "a=2048x2048",
                 "b=2048x2048"});
    job.start();
    job.wait_for("[worker.0] step 3");
    const auto killed = std::chrono::steady_clock::now();
    job.kill_member("server.1", SIGKILL);
    const JobResult& result = job.finish(seconds(30));
    CHECK(std::chrono::steady_clock::now() - killed < seconds(15));
    CHECK_MESSAGE(result.exit_code == 1, result.output);
    CHECK_MESSAGE(result.summary.reason.find("was killed by SIGKILL") != std::string::npos,
                  result.summary.reason);
  }
}

TEST_CASE("T1: a job on an address that is not this machine's ends at once, naming it") {
  Job job;
  job.servers(1).workers(1).flag("--fabric", "tcp").flag("--bind", "203.0.113.9");
  job.program({"small_worker", "--steps", "1"});
  const JobResult& result = job.run(seconds(30));
  CHECK(result.exit_code != 0);
  CHECK_MESSAGE(result.output.find("203.0.113.9") != std::string::npos, result.output);
}

}  // namespace leeway::fault
