// Cases of numbers and consistency, with gradients that a person can add up.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "tests/cluster/job.h"

namespace leeway::cluster {
namespace {

// What each worker printed after `word`, one entry a line.
std::vector<std::string> said(const std::string& output, const std::string& word) {
  std::vector<std::string> lines;
  const std::string needle = "] " + word + " ";
  for (std::size_t at = 0; (at = output.find(needle, at)) != std::string::npos; ++at) {
    const auto begin = at + needle.size();
    lines.push_back(output.substr(begin, output.find('\n', begin) - begin));
  }
  return lines;
}

std::set<std::string> distinct(const std::vector<std::string>& lines) {
  return {lines.begin(), lines.end()};
}

// Plain sums: learning rate 1, FP32 weights, no momentum.
Job& plain(Job& job, int servers, int workers) {
  job.servers(servers).workers(workers);
  return job.set("optimizer", "sgd").set("learning_rate", "1").set("pull_dtype", "f32");
}

const JobResult& succeed(Job& job) {
  const JobResult& result = job.run();
  REQUIRE_MESSAGE(result.exit_code == 0, result.output);
  CHECK(result.summary.violations == 0);
  return result;
}

}  // namespace

TEST_SUITE_BEGIN("cluster");

TEST_CASE("N2: NaN from step 0 stops at the smallest scale and never touches the weights") {
  const TemporaryDirectory at_start, at_end;
  {
    Job job;
    plain(job, 2, 2).checkpoints(at_start.path());
    job.program({"small_worker", "--steps", "0", "--initial", "3"});
    succeed(job);
  }
  Job job;
  plain(job, 2, 2).set("loss_scale_initial", "65536").checkpoints(at_end.path());
  job.set("checkpoint_every", "4");
  job.program(
      {"small_worker", "--steps", "1000", "--step-ms", "50", "--nan-at", "0", "--initial", "3"});
  const JobResult& result = job.run();
  CHECK_MESSAGE(result.exit_code == 1, result.output);
  CHECK_MESSAGE(result.summary.reason.find("scale") != std::string::npos, result.summary.reason);
  CHECK(distinct(said(result.output, "first")).size() == 1);
  REQUIRE(!result.summary.last_checkpoint.empty());  // taken after steps that were skipped
  CHECK(checkpoint_digest(at_end.path()) == checkpoint_digest(at_start.path()));
}

TEST_CASE("N3: the loss scale does not change the result") {
  std::set<std::string> results;
  for (const char* scale : {"256", "65536"}) {
    Job job;
    plain(job, 2, 2).flag("--update", "per_clock").set("loss_scale_initial", scale);
    job.program({"small_worker", "--steps", "20", "--gradient", "0.25"});
    for (const std::string& line : said(succeed(job).output, "weights")) results.insert(line);
  }
  CHECK(results.size() == 2);  // one line a tensor, the same of both workers in both jobs
}

TEST_CASE("N4: one inf in a 4 MiB tensor skips the step on every server, counted once") {
  Job job;
  plain(job, 3, 2).set("partition_elements", "65536");
  job.program({"small_worker", "--steps", "10", "--shapes", "big=1024x1024", "small=3", "--inf-at",
               "4", "--fault-rank", "1"});
  const JobResult& result = succeed(job);
  CHECK(result.summary.skipped_steps == 1);
  for (const std::string& line : said(result.output, "weights"))
    CHECK_MESSAGE(line.find(" -19 -19 ") != std::string::npos, line);
}

TEST_CASE("N5: masters are exact FP32 whatever travels") {
  Job job;
  plain(job, 2, 1).set("loss_scale_initial", "1").set("loss_scale_max", "1");
  SUBCASE("1.0 for 4,096 times") {
    job.program({"small_worker", "--steps", "4096", "--gradient", "1"});
    for (const std::string& line : said(succeed(job).output, "weights"))
      CHECK_MESSAGE(line.find(" -4096 -4096 ") != std::string::npos, line);
  }
  SUBCASE("60000 twice") {
    job.program({"small_worker", "--steps", "2", "--gradient", "60000"});
    for (const std::string& line : said(succeed(job).output, "weights"))
      CHECK_MESSAGE(line.find(" -120000 -120000 ") != std::string::npos, line);
  }
}

TEST_CASE("N6: empty tensors and tensors of few elements train, are saved and restored") {
  const TemporaryDirectory checkpoints;
  const std::vector<std::string> shapes = {"--shapes", "none=0", "empty=0x128", "one=1", "three=3"};
  for (const char* steps : {"5", "9"}) {
    Job job;
    plain(job, 3, 2).checkpoints(checkpoints.path()).flag("--resume", "auto");
    std::vector<std::string> command = {"small_worker", "--steps", steps};
    command.insert(command.end(), shapes.begin(), shapes.end());
    job.program(command);
    const JobResult& result = succeed(job);
    const std::string sum = std::to_string(-2 * std::stoi(steps));
    for (const std::string& line : said(result.output, "weights"))
      if (line.starts_with("one") || line.starts_with("three"))
        CHECK_MESSAGE(line.find(" " + sum + " " + sum + " ") != std::string::npos, line);
    CHECK(said(result.output, "weights").size() == 8);
  }
  CHECK(checkpoint_digest(checkpoints.path()).size() == 32);
}

TEST_CASE("C2: workers with different seeds and a late rank 0 pull the same first weights") {
  Job job;
  // At staleness 0 no clock is applied before everybody has computed on the first weights.
  plain(job, 2, 3).flag("--update", "per_clock");
  job.program({"small_worker", "--steps", "3", "--seed-by-rank", "1", "--late-rank", "0",
               "--late-seconds", "10"});
  const JobResult& result = succeed(job);
  const auto firsts = said(result.output, "first");
  CHECK(firsts.size() == 3);
  CHECK(distinct(firsts).size() == 1);
}

TEST_CASE("C3: another order of declaration gives the same result") {
  std::set<std::string> results;
  for (const char* reverse : {"-1", "1"}) {
    Job job;
    plain(job, 2, 2).flag("--update", "per_clock");
    job.program({"small_worker", "--steps", "6", "--pull", "0.25", "--shapes", "a=4", "b=30x3",
                 "c=2", "--reverse-rank", reverse});
    for (const std::string& line : said(succeed(job).output, "weights")) results.insert(line);
  }
  CHECK(results.size() == 3);
}

TEST_CASE("C3: two tensors of one name, and another shape, are refused by name") {
  for (const std::string fault : {"--duplicate-rank", "--other-shape-rank"}) {
    CAPTURE(fault);
    Job job;
    plain(job, 2, 2);
    job.program({"small_worker", "--shapes", "encoder.weight=4x3", "b=2", fault, "1"});
    const JobResult& result = job.run(seconds(30));
    CHECK_MESSAGE(result.exit_code == 1, result.output);
    CHECK_MESSAGE(result.summary.reason.find("encoder.weight") != std::string::npos,
                  result.summary.reason);
  }
}

TEST_CASE("O1: NaN as a loss and as a metric still gives strict JSON") {
  Job job;
  plain(job, 1, 1).program({"small_worker", "--steps", "3", "--nan-loss", "--nan-metric"});
  const JobResult& result = succeed(job);  // the parser refuses NaN
  CHECK(result.summary.text.find("\"metric\": null") != std::string::npos);
}

TEST_SUITE_END();

}  // namespace leeway::cluster
