// What a person gets wrong: one clear line, non-zero, no process left.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/cluster/job.h"

namespace leeway::cluster {
namespace {

// A port of the loopback interface that is taken as long as this lives.
class TakenPort {
 public:
  TakenPort() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    REQUIRE(::bind(fd_, reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(::listen(fd_, 1) == 0);
    REQUIRE(::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
  }
  ~TakenPort() { ::close(fd_); }
  int port() const noexcept { return port_; }

 private:
  int fd_, port_ = 0;
};

}  // namespace

TEST_SUITE_BEGIN("cluster");

TEST_CASE("F2: wrong flags and missing settings are one line and exit code 2") {
  const std::vector<std::vector<std::string>> wrong = {
      {"leeway-run", "--serverz", "2", "--", "small_worker"},
      {"leeway-run", "--servers", "two", "--", "small_worker"},
      {"leeway-run", "--set", "staleness=-1", "--", "small_worker"},
      {"leeway-run", "--set", "stalenes=1", "--", "small_worker"},
      {"leeway-run", "--fabric", "infiniband", "--", "small_worker"},
      {"leeway-run", "--checkpoint-every", "5", "--", "small_worker"},
      {"leeway-run", "--servers", "2"},
      {"leeway-run", "--", "no_such_program"}};
  for (const auto& command : wrong) {
    const CommandResult result = run_command(command);
    CAPTURE(result.output);
    CHECK(result.exit_code == 2);
    CHECK(result.output.starts_with("leeway-run: "));
    CHECK(result.output.find('\n') == result.output.size() - 1);
  }
}

TEST_CASE("leeway-run doctor is leeway-doctor: its output, its exit code") {
  const CommandResult here = run_command({"leeway-run", "doctor", "--fabric", "tcp"});
  CAPTURE(here.output);
  CHECK(here.exit_code == 0);
  CHECK(here.output.find("A job can run here") != std::string::npos);
  const CommandResult wrong = run_command({"leeway-run", "doctor", "--topology", "/nowhere/x"});
  CHECK(wrong.exit_code == 2);
  CHECK(wrong.output.starts_with("leeway-doctor: /nowhere/x cannot be read"));
}

TEST_CASE("F2: a port in use is named") {
  const TakenPort taken;
  Job job;
  job.flag("--listen", "127.0.0.1:" + std::to_string(taken.port())).program({"small_worker"});
  const JobResult& result = job.run(seconds(20));
  CHECK_MESSAGE(result.exit_code == 1, result.output);
  CHECK_MESSAGE(result.summary.reason.find(std::to_string(taken.port())) != std::string::npos,
                result.summary.reason);
}

TEST_CASE("a fabric that is not there is an error, never a fallback") {
  for (const char* fabric : {"efa", "verbs"}) {
    Job job;
    job.flag("--fabric", fabric).program({"small_worker"});
    const JobResult& result = job.run(seconds(20));
    CHECK_MESSAGE(result.exit_code == 1, result.output);
    CHECK_MESSAGE(result.summary.reason.find(fabric) != std::string::npos, result.summary.reason);
  }
}

TEST_CASE("a missing data directory is named") {
  Job job;
  job.workers(2).program({"fashion_mnist", "--data", "/nowhere/at/all"});
  const JobResult& result = job.run(seconds(20));
  CHECK_MESSAGE(result.exit_code == 1, result.output);
  CHECK_MESSAGE(result.summary.reason.find(": no data set in /nowhere/at/all") != std::string::npos,
                result.summary.reason);
}

TEST_CASE("leeway-run needs no standard streams") {
  Job job;
  job.servers(2).workers(2).program({"small_worker", "--steps", "3"});
  job.closed_streams().start();
  const JobResult& result = job.finish(seconds(30));
  CHECK(result.exit_code == 0);
  CHECK_MESSAGE(result.summary.result == "ok", result.summary.reason);
}

TEST_CASE("M8: a worker with another token, or of another size of job, is refused with the cause") {
  Job job;
  job.servers(1).workers(2).program(
      {"small_worker", "--steps", "200", "--step-ms", "10", "--print-steps"});
  job.start();
  job.wait_for("[worker.0] step 5");
  const auto stranger = [&](const std::string& token, const std::string& rank) {
    return run_command({"small_worker"},
                       {{"LEEWAY_SCHEDULER", job.scheduler_address()},
                        {"LEEWAY_TOKEN", token},
                        {"LEEWAY_FABRIC", "auto"},
                        {"LEEWAY_BIND", "127.0.0.1"},
                        {"RANK", rank},
                        {"WORLD_SIZE", "2"}},
                       seconds(20));
  };
  const CommandResult other_token = stranger("not-this-job", "0");
  CHECK(other_token.exit_code == 1);
  CHECK_MESSAGE(other_token.output.find("token") != std::string::npos, other_token.output);
  const CommandResult other_rank = stranger(job.token(), "7");
  CHECK_MESSAGE(other_rank.exit_code == 1, other_rank.output);
  const CommandResult taken_rank = stranger(job.token(), "1");
  CHECK_MESSAGE(taken_rank.exit_code == 1, taken_rank.output);
  const JobResult& result = job.finish();
  CHECK_MESSAGE(result.exit_code == 0, result.output);
}

TEST_SUITE_END();

}  // namespace leeway::cluster
