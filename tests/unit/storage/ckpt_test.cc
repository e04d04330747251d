#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "storage/ckpt_commands.h"
#include "storage/safetensors.h"
#include "test_job.h"

namespace leeway::storage {
namespace {

using testing::TempDir;
using testing::TestJob;
using testing::TestModel;

struct Ran {
  int status = 0;
  std::string out;
  std::string err;
};

Ran run(const std::vector<std::string>& arguments) {
  std::ostringstream out;
  std::ostringstream err;
  const int status = run_ckpt(arguments, out, err);
  return {status, out.str(), err.str()};
}

void check_refused(const std::vector<std::string>& arguments, const std::string& part) {
  const Ran ran = run(arguments);
  CAPTURE(ran.err);
  CHECK(ran.status == 1);
  CHECK(ran.err.find(part) != std::string::npos);
  CHECK(std::count(ran.err.begin(), ran.err.end(), '\n') == 1);
}

TEST_CASE("leeway-ckpt: list, inspect, verify and export") {
  TempDir dir;
  TestJob job(dir.path("ckpt"), 2, 300'000);
  job.save("step-1", TestModel::small(1));
  job.save("step-2", TestModel::small(2));
  const std::string ckpt = dir.path("ckpt");

  const Ran list = run({"list", ckpt});
  CHECK(list.status == 0);
  CHECK(list.out.find("step-1") < list.out.find("step-2"));
  CHECK(list.out.find("700004") != std::string::npos);
  const auto listed = nlohmann::json::parse(run({"list", ckpt, "--json"}).out);
  REQUIRE(listed.size() == 2);
  CHECK(listed[1]["checkpoint"] == "step-2");
  CHECK(listed[1]["workers"]["1"]["clock"] == 3);

  CHECK(run({"inspect", "--digest", ckpt}).out == TestModel::small(2).digest() + "\n");
  CHECK(run({"inspect", ckpt, "--digest", "--checkpoint", "step-1"}).out ==
        TestModel::small(1).digest() + "\n");
  const Ran inspect = run({"inspect", ckpt});
  for (const char* part : {"e.weight", "(700, 1000)", "staleness = 0", "step-2"})
    CHECK(inspect.out.find(part) != std::string::npos);
  const auto inspected = nlohmann::json::parse(run({"inspect", ckpt, "--json"}).out);
  CHECK(inspected["digest"] == TestModel::small(2).digest());
  CHECK(inspected["tensors"][4]["shape"] == nlohmann::json({700, 1000}));
  CHECK(inspected["settings"]["seed"] == "2");

  CHECK(run({"verify", ckpt}).out == "step-1  whole\nstep-2  whole\n");

  const std::string file = dir.path("out.safetensors");
  CHECK(run({"export", ckpt, "--output", file, "--checkpoint", "step-1"}).status == 0);
  const auto reader = value_or_throw(SafetensorsReader::open(file));
  std::vector<float> weight(700'000);
  REQUIRE(reader->read("e.weight", 0, weight));
  CHECK(testing::same_bits(weight, TestModel::small(1).values(4, ArrayKind::kMaster)));
  CHECK(reader->metadata().at("leeway_checkpoint") == "step-1");
}

TEST_CASE("K2 leeway-ckpt: verify names the damaged checkpoint and clears the others") {
  TempDir dir;
  const std::string ckpt = dir.path("ckpt");
  TestJob(ckpt, 1, 300'000).save("step-1", TestModel::small(1));
  const auto first = testing::files_ending(ckpt + "/server-000", ".sst");
  REQUIRE(first.size() == 1);
  TestJob(ckpt, 1, 300'000).save("step-2", TestModel::small(2));
  testing::flip_byte(first[0], 1u << 20);
  const Ran verify = run({"verify", ckpt});
  CHECK(verify.status == 1);
  CHECK(verify.out == "step-1  damaged\nstep-2  whole\n");
  CHECK(verify.err.find("checkpoint 'step-1'") != std::string::npos);
  CHECK(std::count(verify.err.begin(), verify.err.end(), '\n') == 1);
  CHECK(run({"verify", ckpt, "--checkpoint", "step-2"}).status == 0);
  const auto json = nlohmann::json::parse(run({"verify", ckpt, "--json"}).out);
  CHECK(json[0]["whole"] == false);
  CHECK(json[1]["error"] == nullptr);
}

TEST_CASE("leeway-ckpt: wrong use is one line with a remedy") {
  TempDir dir;
  TestJob job(dir.path(), 1, 100'000);
  check_refused({"list", dir.path("nowhere")}, "does not exist");
  check_refused({"list", dir.path("server-000")}, "is no checkpoint directory");
  CHECK(run({"list", dir.path()}).status == 0);  // no checkpoint yet
  check_refused({"inspect", dir.path()}, "no committed checkpoint");
  check_refused({"verify", dir.path()}, "no committed checkpoint");
  check_refused({"verfy", dir.path()}, "unknown command 'verfy'; did you mean verify?");
  check_refused({"inspect", "--digst", dir.path()}, "unknown flag --digst; did you mean --digest?");
  check_refused({"export", dir.path()}, "--output");
  check_refused({"list"}, "DIR");
  check_refused({}, "leeway-ckpt:");
  job.save("c", TestModel::small(1));
  check_refused({"inspect", dir.path(), "--checkpoint", "d"}, "no committed checkpoint 'd'");
  check_refused({"export", dir.path(), "--output", dir.path("no/dir/x")}, "cannot create");
  CHECK(run({"--help"}).status == 0);
  CHECK(run({"inspect", "--help"}).out.find("--digest") != std::string::npos);
}

}  // namespace
}  // namespace leeway::storage
