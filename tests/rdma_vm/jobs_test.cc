// Whole jobs over verbs: runs in the virtual machine of this folder, on its rxe0. The address of
// the device comes as TEST_BIND.
#include <doctest/doctest.h>

#include <csignal>
#include <cstdlib>
#include <sstream>

#include "tests/cluster/job.h"

namespace leeway::cluster {
namespace {

// The machine is emulated, and slow.
constexpr seconds kPatience(120);

std::string bind_address() {
  const char* address = std::getenv("TEST_BIND");
  REQUIRE(address != nullptr);
  return address;
}

// Cut into many partitions over two servers; every step of every worker changes every element.
void small_job(Job& job, const std::string& fabric) {
  job.servers(2).workers(2).flag("--fabric", fabric).flag("--bind", bind_address());
  job.set("partition_elements", "4096").set("pull_dtype", "f32");
  job.set("member_timeout_ms", "20000");
}

std::vector<std::string> small_program(std::vector<std::string> more) {
  std::vector<std::string> command = {"small_worker", "--shapes", "a=200x100", "b=64x64", "c=7"};
  command.insert(command.end(), more.begin(), more.end());
  return command;
}

std::vector<std::string> lines_with(const std::string& output, const std::string& text) {
  std::vector<std::string> found;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);)
    if (line.find(text) != std::string::npos) found.push_back(line);
  return found;
}

std::vector<std::string> final_weights(const std::string& output, const std::string& worker) {
  return lines_with(output, "[" + worker + "] weights ");
}

const JobResult& succeed(const JobResult& result) {
  REQUIRE_MESSAGE(result.exit_code == 0, result.output);
  CHECK(result.summary.result == "ok");
  CHECK(result.summary.violations == 0);
  return result;
}

// Both servers and both workers said so.
void went_over_verbs(const JobResult& result) {
  for (const std::string member : {"server.0", "server.1", "worker.0", "worker.1"}) {
    bool said = false;
    for (const std::string& line : lines_with(result.output, "verbs;ofi_rxm"))
      if (line.starts_with(member) && line.find("rxe0") != std::string::npos) {
        MESSAGE(line);
        said = true;
      }
    CHECK_MESSAGE(said, member);
  }
}

}  // namespace

TEST_CASE("a job over verbs ends with the bits of one over tcp, and says what carried it") {
  const auto program = small_program({"--steps", "12", "--by-rank", "--pull", "0.3"});
  std::vector<std::string> weights[2];
  for (const std::string fabric : {"verbs", "tcp"}) {
    CAPTURE(fabric);
    Job job;
    small_job(job, fabric);
    job.flag("--staleness", "0").flag("--update", "per_clock").program(program);
    const JobResult& result = succeed(job.run(kPatience));
    CHECK(result.summary.steps == 24);
    if (fabric == "verbs") went_over_verbs(result);
    weights[fabric == "tcp"] = final_weights(result.output, "worker.0");
    MESSAGE(fabric << ": " << result.summary.seconds << " s");
  }
  REQUIRE(weights[0].size() == 3);
  CHECK(weights[0] == weights[1]);
}

TEST_CASE("a worker killed between two pushes leaves no trace of the step") {
  Job job;
  small_job(job, "verbs");
  job.flag("--staleness", "2").flag("--update", "per_push");
  job.set("optimizer", "sgd").set("learning_rate", "1");
  job.program(
      small_program({"--steps", "10", "--kill-between-rank", "1", "--kill-between-step", "4"}));
  const JobResult& result = succeed(job.run(kPatience));
  CHECK(result.summary.exit_codes.at("worker.1") == -SIGKILL);
  const auto weights = final_weights(result.output, "worker.0");
  REQUIRE(weights.size() == 3);
  for (const std::string& line : weights)  // its own 10 steps, and the 4 that worker 1 committed
    CHECK_MESSAGE(line.find(" -14 -14 ") != std::string::npos, line);
}

TEST_CASE("a killed server ends the job with the cause") {
  Job job;
  small_job(job, "verbs");
  job.program(small_program({"--steps", "100000", "--print-steps"}));
  job.start();
  job.wait_for("[worker.0] step 3\n", kPatience);
  job.kill_member("server.1", SIGKILL);
  const JobResult& result = job.finish(seconds(40));
  CHECK_MESSAGE(result.exit_code == 1, result.output);
  CHECK_MESSAGE(result.summary.reason.starts_with("server"), result.summary.reason);
  CHECK_MESSAGE(result.summary.reason.find("was killed by SIGKILL") != std::string::npos,
                result.summary.reason);
}

TEST_CASE("too little memory to lock is one line with the remedy") {
  // Root may lock what it likes unless it has given up that privilege.
  const CommandResult result = run_command(
      {"setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", "bash", "-c",
       "ulimit -l 256 && PATH=$LEEWAY_BIN_PATH:$PATH && exec leeway-run --servers 1 --workers 1 "
       "--fabric verbs --bind $TEST_BIND --log-dir $TMPDIR/logs -- small_worker"},
      {}, kPatience);
  CHECK(result.exit_code == 1);
  const auto said = lines_with(result.output, "ulimit -l unlimited");
  REQUIRE_MESSAGE(!said.empty(), result.output);
  MESSAGE(said.front());
  CHECK(said.front().find("`ulimit -l` is 256 KiB") != std::string::npos);
}

}  // namespace leeway::cluster
