#include "scheduler/launcher/summary.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "scheduler/launcher/child_process.h"
#include "scheduler/launcher/report.h"
#include "tests/unit/launcher/scratch.h"

namespace leeway::launcher {
namespace {

JobSnapshot two_workers() {
  JobSnapshot snapshot{.phase = Phase::kDone, .settings = {{"staleness", "2"}}};
  snapshot.workers = {{.member = {Role::kWorker, 0},
                       .state = "FINISHED",
                       .provider = "leeway-tcp",
                       .worker = WorkerFigures{.clock = 100,
                                               .samples = 6400,
                                               .skipped_steps = 1,
                                               .loss = 0.5,
                                               .epoch = 1,
                                               .staleness_histogram = {90, 10},
                                               .metrics = {{"test_accuracy", 0.9}}}},
                      {.member = {Role::kWorker, 1},
                       .state = "FINISHED",
                       .worker = WorkerFigures{.clock = 98,
                                               .samples = 6272,
                                               .loss = std::numeric_limits<double>::quiet_NaN(),
                                               .epoch = 2,
                                               .staleness_histogram = {90, 5, 3, 0},
                                               .metrics = {{"test_accuracy", 0.1}, {"other", 7}}}}};
  snapshot.last_checkpoint = CheckpointSnapshot{.id = "000007", .clocks = {{0, 60}, {1, 58}}};
  return snapshot;
}

}  // namespace

TEST_CASE("a summary adds up the workers, the lowest rank's metric counts") {
  Summary summary;
  summary.add(std::nullopt, two_workers(), 2.0);
  CHECK(summary.steps == 198);
  CHECK(summary.samples == 12672);
  CHECK(summary.samples_per_second() == 6336);
  CHECK(summary.skipped_steps == 1);
  CHECK(summary.staleness_histogram == std::vector<std::int64_t>{180, 15, 3, 0});
  CHECK(summary.max_staleness() == 2);
  CHECK(summary.metrics == std::map<std::string, double>{{"test_accuracy", 0.9}, {"other", 7}});
  CHECK(summary.last_checkpoint == "000007");
  // A second start, from a checkpoint.
  summary.add(two_workers().last_checkpoint, two_workers(), 1.0);
  CHECK(summary.steps == 198 + 80);
  CHECK(summary.seconds == 3.0);
}

TEST_CASE("the steps of a failed start beyond the restored checkpoint are done again") {
  CHECK(steps_beyond(two_workers(), two_workers().last_checkpoint) == 80);
  CHECK(steps_beyond(two_workers(), std::nullopt) == 198);
}

TEST_CASE("a worker that the checkpoint does not know starts where the slowest known one was") {
  const CheckpointSnapshot restored{.id = "000007", .clocks = {{0, 60}, {2, 58}}};
  CHECK(steps_beyond(two_workers(), restored) == (100 - 60) + (98 - 58));
}

TEST_CASE("what is resumed is what was asked for") {
  JobSnapshot first = two_workers();
  first.checkpoints = {{.id = "000006", .clocks = {{0, 50}, {1, 50}}}, *first.last_checkpoint};
  CHECK(!restored_checkpoint("never", first));
  CHECK(restored_checkpoint("auto", first)->id == "000007");
  CHECK(restored_checkpoint("000006", first)->clocks.at(0) == 50);
}

TEST_CASE("O1: a summary is strict JSON whatever the numbers are, and every key is there") {
  Summary summary;
  summary.reason = "worker.0 said \"\xff\n\"";
  summary.exit_codes = {{"worker.0", -9}};
  summary.seconds = std::numeric_limits<double>::infinity();
  summary.staleness_bound = "inf";
  summary.metrics = {{"loss", std::numeric_limits<double>::quiet_NaN()},
                     {"low", -std::numeric_limits<double>::infinity()}};
  const std::string text = to_json(summary);
  const auto json = nlohmann::json::parse(text);
  CHECK(json["result"] == "failed");
  CHECK(json["metrics"]["loss"].is_null());
  CHECK(json["metrics"]["low"].is_null());
  CHECK(json["seconds"].is_null());
  CHECK(json["samples_per_second"] == 0);
  CHECK(json["staleness"]["bound"] == "inf");
  CHECK(json["last_checkpoint"].is_null());
  CHECK(json["exit_codes"]["worker.0"] == -9);
  for (const char* key :
       {"reason", "steps", "samples", "skipped_steps", "restarts", "repeated_steps"})
    CHECK(json.contains(key));
  for (const char* key : {"max_observed", "violations", "histogram"})
    CHECK(json["staleness"].contains(key));

  Summary good;
  good.ok = true;
  good.staleness_bound = "4";
  const auto ok = nlohmann::json::parse(to_json(good));
  CHECK(ok["result"] == "ok");
  CHECK(ok["reason"].is_null());
  CHECK(ok["staleness"]["bound"] == 4);
}

TEST_CASE("a summary replaces the file whole, and an error leaves nothing half") {
  const Scratch scratch;
  const std::string path = (scratch.path() / "summary.json").string();
  write_summary({}, path);
  write_summary({}, path);
  CHECK(nlohmann::json::parse(scratch.read("summary.json"))["result"] == "failed");
  CHECK_THROWS_AS(write_summary({}, (scratch.path() / "no" / "x.json").string()), ConfigError);
  std::filesystem::create_directory(scratch.path() / "directory");
  CHECK_THROWS_AS(write_summary({}, (scratch.path() / "directory").string()), ConfigError);
  CHECK(std::distance(std::filesystem::directory_iterator(scratch.path()), {}) == 2);
}

TEST_CASE("a summary goes where a link points, and the link stays") {
  const Scratch scratch;
  std::filesystem::create_directory(scratch.path() / "other");
  for (const char* state : {"it is there", "it is not there yet"}) {
    CAPTURE(state);
    const std::filesystem::path link = scratch.path() / state;
    std::filesystem::create_symlink(std::filesystem::path("other") / state, link);
    if (state == std::string("it is there")) scratch.write(state, "old");
    check_summary_target(link.string());
    write_summary({}, link.string());
    CHECK(std::filesystem::is_symlink(link));
    CHECK(std::filesystem::is_regular_file(scratch.path() / "other" / state));
    CHECK(nlohmann::json::parse(scratch.read(state))["result"] == "failed");
  }
  CHECK(std::distance(std::filesystem::directory_iterator(scratch.path() / "other"), {}) == 2);
}

TEST_CASE("a summary is written into a device or a pipe, which stays what it is") {
  const Scratch scratch;
  const std::filesystem::path device = scratch.path() / "device";
  std::filesystem::create_symlink("/dev/null", device);
  check_summary_target(device.string());
  write_summary({}, device.string());
  CHECK(std::filesystem::is_symlink(device));
  CHECK(std::filesystem::is_character_file(device));

  const std::filesystem::path pipe = scratch.path() / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  check_summary_target(pipe.string());  // does not wait for a reader either
  CHECK_THROWS_AS(write_summary({}, pipe.string()), ConfigError);
  const Fd reader(::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  REQUIRE(reader);
  write_summary({}, pipe.string());
  CHECK(std::filesystem::is_fifo(pipe));
  std::string text(4096, '\0');
  const ssize_t got = ::read(reader.get(), text.data(), text.size());
  REQUIRE(got > 0);
  text.resize(static_cast<std::size_t>(got));
  CHECK(nlohmann::json::parse(text)["result"] == "failed");
  CHECK(std::distance(std::filesystem::directory_iterator(scratch.path()), {}) == 2);
}

TEST_CASE("a summary that cannot be written is found before there is one") {
  const Scratch scratch;
  check_summary_target((scratch.path() / "new.json").string());
  CHECK(std::filesystem::is_empty(scratch.path()));
  scratch.write("old.json", "old");
  check_summary_target((scratch.path() / "old.json").string());
  CHECK(scratch.read("old.json") == "old");
  for (const std::string& bad :
       {(scratch.path() / "no" / "x.json").string(), scratch.path().string()})
    CHECK_THROWS_AS(check_summary_target(bad), ConfigError);
}

TEST_CASE("O1: the progress line says a loss that is no number as such") {
  JobSnapshot now = two_workers();
  CHECK(progress_line(std::nullopt, now).starts_with("epoch 1.50  loss 0.5000  0 samples/s"));
  CHECK(progress_line(std::nullopt, now).find("staleness 2 (bound 2)") != std::string::npos);
  CHECK(progress_line(now, now).find("staleness 0 (bound 2)") != std::string::npos);
  now.workers[0].worker->loss = std::numeric_limits<double>::infinity();
  CHECK(progress_line(std::nullopt, now).find("loss not finite") != std::string::npos);
}

}  // namespace leeway::launcher
