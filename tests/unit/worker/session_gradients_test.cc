// What of a session's gradients reaches the servers: codecs, checksums, micro-batches, clipping,
// local steps, steps that are skipped.
#include <doctest/doctest.h>

#include <array>
#include <filesystem>
#include <limits>
#include <string>
#include <thread>

#include "common/codec.h"
#include "storage/checkpoint_store.h"
#include "tests/unit/worker/session_job.h"
#include "tests/unit/worker/temporary_directory.h"

namespace leeway::worker {
namespace {

using testing::contains;
using testing::error_of;
using testing::FakeServer;
using testing::floats;
using testing::Floats;
using testing::Job;
using transport::Ending;

}  // namespace

TEST_CASE("with checksum = crc32c every payload goes with its own") {
  Job job;
  job.scheduler.settings["checksum"] = "crc32c";
  auto session = job.start();
  job.step(*session, 0.25f);
  job.step(*session, 0.5f);
  session->finish({});
  // The initial values and two steps, of two partitions and of one.
  CHECK(job.servers[0].checksums() == 6);
  CHECK(job.servers[1].checksums() == 3);
}

TEST_CASE("gradients travel in the job's codec, as many bytes as it takes") {
  for (const NamedCodec& codec : kGradientCodecs) {
    if (codec.codec == Codec::kTopK) continue;  // it sends a part: below
    CAPTURE(codec.name);
    Job job;
    job.scheduler.settings["gradient_codec"] = std::string(codec.name);
    auto session = job.start();
    job.step(*session, 0.25f);
    job.step(*session, 1.5f);
    session->finish({});
    CHECK(job.servers[0].masters().at(PartitionId(2)) == Floats{5.25f, 6.25f, 7.25f});
    CHECK(job.servers[1].masters().at(PartitionId(1)).at(0) == 3.25f);
    // Three partitions of three elements.
    CHECK(job.scheduler.finished()->bytes_pushed ==
          static_cast<std::int64_t>(9 * 4 + 2 * 3 * GradientCodec{codec.codec}.bytes(3)));
  }
}

TEST_CASE("top-k sends the largest, and everything in the end, skipped steps left out") {
  Job job;
  job.scheduler.settings["gradient_codec"] = "topk";  // one of three elements
  auto session = job.start();
  const auto step = [&](const Floats& b) {
    REQUIRE(session->begin_step());
    const auto scale = static_cast<float>(session->loss_scale());
    Floats scaled = b;
    for (float& x : scaled) x *= scale;
    session->push(job.a, Floats(6, 0));
    session->push(job.b, scaled);
    return session->commit({}).skipped;
  };
  const auto after = [&](std::size_t endings) {
    CHECK(job.servers[0].has_endings(endings));
    return job.servers[0].masters().at(PartitionId(2));
  };
  CHECK(!step({1, 2, 4}));
  CHECK(after(2) == Floats{7, 8, 5});  // the first ending is of the initial values
  CHECK(step({64, std::numeric_limits<float>::infinity(), 64}));
  CHECK(!step({1, 2, 3}));  // with 1 and 2 from before, at half the loss scale
  CHECK(after(4) == Floats{7, 4, 5});
  CHECK(!step({0, 0, 0}));
  CHECK(!step({0, 0, 0}));
  CHECK(after(6) == Floats{5, 4, 2});
  session->finish({});
  CHECK(job.scheduler.finished()->bytes_pushed == 9 * 4 + 4 * 3 * 6);
}

TEST_CASE("top-k: a directory in which the scheduler has nothing is not the job's") {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.path();
  Job job;
  job.scheduler.settings["gradient_codec"] = "topk";
  job.scheduler.checkpoint_dir = directory;
  const std::string error = error_of([&] { job.start(); });
  CHECK(contains(error, "has no manifest/"));
  CHECK(contains(error, "mount it on this host, or use another codec"));
  CHECK(std::filesystem::is_empty(directory));
}

TEST_CASE("top-k: a worker stands still for a checkpoint, keeps its residual, and its last one") {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.path();
  Job job;
  job.scheduler.settings["gradient_codec"] = "topk";  // one of three elements
  job.scheduler.checkpoint_dir = directory;
  value_or_throw(storage::ManifestStore::open(directory)).reset();
  auto session = job.start();
  const auto push = [&](const Floats& b) {
    Floats scaled = b;
    for (float& x : scaled) x *= static_cast<float>(session->loss_scale());
    session->push(job.a, Floats(6, 0));
    session->push(job.b, scaled);
    session->commit({});
  };
  const auto stands_at = [&](std::int64_t clock) {
    return job.scheduler.reported(
        [&](const auto& report) { return report.paused == "000001" && report.clock == clock; });
  };
  REQUIRE(session->begin_step());
  job.scheduler.order(rpc::CheckpointStage::PAUSE, "000001");
  push({1, 2, 4});  // a step that has begun is done first; 4 goes
  bool stood_first = false, stood_then = false;
  std::thread scheduler([&] {
    stood_first = stands_at(1);
    job.scheduler.order(rpc::CheckpointStage::PAUSE, "000001", {{0, 2}});  // others are there
    stood_then = stands_at(2);
    job.scheduler.order(rpc::CheckpointStage::HOLD, "000001", {{0, 2}});
    job.scheduler.order(rpc::CheckpointStage::CUT, "000001", {{0, 2}});
  });
  REQUIRE(session->begin_step());
  push({0, 0, 8});  // 8 goes
  REQUIRE(session->begin_step());
  scheduler.join();
  CHECK(stood_first);
  CHECK(stood_then);
  push({16, 0, 0});  // 17 goes; the checkpoint has what was before
  CHECK(job.scheduler.reported(
      [](const auto& report) { return report.residuals.contains("000001"); }));
  session->finish({});
  const auto report = job.scheduler.finished();
  REQUIRE(report->residuals.size() == 2);
  session.reset();

  storage::Manifest manifest{.tensors = {{"a", {2, 3}}, {"b", {3}}, {"none", {0, 4}}},
                             .partitions = {{0, 0, 4, 0}, {0, 4, 2, 0}, {1, 0, 3, 0}},
                             .shard_digests = {"none"}};
  const auto manifests = value_or_throw(storage::ManifestStore::open(directory));
  for (const auto& [id, shard] : {std::pair("000001", "000001"), std::pair("000002", "end-5")}) {
    manifest.id = id;
    manifest.workers[0].residual = {shard, report->residuals.at(shard).digest};
    value_or_throw(manifests->commit(manifest));
  }
  // What a resumed worker pushes first is what the checkpoint has.
  for (const auto& [id, moved] :
       {std::pair("000001", Floats{-1, -2, 0}), std::pair("000002", Floats{0, -2, 0})}) {
    Job resumed(Dtype::kF32, true);
    resumed.scheduler.settings = job.scheduler.settings;
    resumed.scheduler.checkpoint_dir = directory;
    resumed.scheduler.restore = id;
    resumed.scheduler.progress.emplace();
    resumed.scheduler.progress->clock = 2;
    resumed.scheduler.progress->residual = true;
    auto again = resumed.start();
    for (int step = 0; step < 2; ++step) resumed.step(*again, 0);
    CHECK(resumed.servers[0].has_endings(2));
    again.reset();
    CHECK(resumed.servers[0].masters().at(PartitionId(2)) == moved);
  }
  manifest.id = "000003";
  manifest.workers[0].residual.reset();
  value_or_throw(manifests->commit(manifest));
  Job lacking(Dtype::kF32, true);
  lacking.scheduler.settings = job.scheduler.settings;
  lacking.scheduler.checkpoint_dir = directory;
  lacking.scheduler.restore = "000003";
  lacking.scheduler.progress.emplace();
  lacking.scheduler.progress->residual = true;
  CHECK(contains(error_of([&] { lacking.start(); }), "has no residual of this worker"));
}

TEST_CASE(
    "top-k with clip_norm: what is applied and what is kept are the clipped gradients, as FP64 "
    "sums them") {
  Job job;
  job.scheduler.settings["gradient_codec"] = "topk";  // one of three elements
  job.scheduler.settings["clip_norm"] = "1.5";
  auto session = job.start();
  std::array<double, 3> expected{7, 8, 9};
  int steps = 0;
  const auto step = [&](const Floats& b) {
    REQUIRE(session->begin_step());
    const auto scale = static_cast<float>(session->loss_scale());
    Floats scaled = b;
    for (float& x : scaled) x *= scale;
    session->push(job.a, Floats(6, 0));
    session->push(job.b, scaled);
    const double norm = session->commit({}).gradient_norm;
    for (std::size_t i = 0; i < 3; ++i) expected[i] -= b[i] * (norm > 1.5 ? 1.5 / norm : 1);
    ++steps;
  };
  for (const float x : {0.1f, 3.7f, 0.9f, 5.3f, 0.3f, 2.1f}) step({x, 1.1f * x, -0.7f * x});
  for (int i = 0; i < 12; ++i) step({0, 0, 0});  // what is left goes out, 8 bits of it at a time
  session->finish({});
  CHECK(job.servers[0].has_endings(static_cast<std::size_t>(steps) + 1));
  const Floats master = job.servers[0].masters().at(PartitionId(2));
  for (std::size_t i = 0; i < 3; ++i)
    CHECK(master[i] == doctest::Approx(expected[i]).epsilon(1e-6));
}

TEST_CASE("N4: what a codec cannot hold skips the step as FP16 does") {
  for (const NamedCodec& codec : kGradientCodecs) {
    CAPTURE(codec.name);
    Job job;
    job.scheduler.settings["gradient_codec"] = std::string(codec.name);
    auto session = job.start();
    REQUIRE(session->begin_step());
    session->push(job.a, Floats{1, 1, 1, 1, 1, std::numeric_limits<float>::quiet_NaN()});
    session->push(job.b, Floats(3, 1));
    CHECK(session->commit({}).skipped);
    REQUIRE(session->begin_step());  // 1e5 is beyond FP16 alone
    session->push(job.a, Floats(6, 1e5f));
    session->push(job.b, Floats(3, 1));
    CHECK(session->commit({}).skipped == (codec.codec == Codec::kF16));
    session->finish({});
  }
}

TEST_CASE("with accumulation the mean of the pushes travels") {
  Job job;
  auto session = job.start({.accumulate_steps = 2});
  REQUIRE(session->begin_step());
  for (float gradient : {8.0f, 24.0f}) {
    session->push(job.a, Floats(6, gradient));
    session->push(job.b, Floats(3, gradient));
  }
  session->commit({.samples = 64});
  session->finish({});
  CHECK(job.servers[0].masters().at(PartitionId(2)) == Floats{5, 6, 7});
}

TEST_CASE("a gradient beyond clip_norm is scaled down to it, by the same factor on every server") {
  Job job;
  job.scheduler.settings["clip_norm"] = "3";
  auto session = job.start();
  CHECK(job.step(*session, 0.5).gradient_norm == doctest::Approx(1.5));
  CHECK(job.step(*session, 1).gradient_norm == doctest::Approx(3));  // nine elements: not beyond
  CHECK(job.step(*session, -4).gradient_norm == doctest::Approx(12));
  // One element of all counts, whatever server it is on.
  REQUIRE(session->begin_step());
  Floats gradient(6, 0.0f);
  gradient[5] = static_cast<float>(session->loss_scale()) * 30;
  session->push(job.a, gradient);
  session->push(job.b, Floats(3, 0.0f));
  CHECK(session->commit({}).gradient_norm == doctest::Approx(30));
  session->finish({});
  for (FakeServer& server : job.servers) {
    const auto endings = server.endings();
    REQUIRE(endings.size() == 5);  // the initial values' first
    CHECK(endings[1].commit.factor == 1.0f);
    CHECK(endings[2].commit.factor == 1.0f);
    CHECK(endings[3].commit.factor == 0.25f);
    CHECK(endings[4].commit.factor == doctest::Approx(0.1));
  }
}

TEST_CASE("the norm is of the mean over micro-batches") {
  Job job;
  job.scheduler.settings["clip_norm"] = "3";
  auto session = job.start({.accumulate_steps = 2});
  REQUIRE(session->begin_step());
  const auto scale = static_cast<float>(session->loss_scale());
  for (const float value : {1.0f, 7.0f}) {
    session->push(job.a, Floats(6, value * scale));
    session->push(job.b, Floats(3, value * scale));
  }
  CHECK(session->commit({}).gradient_norm == doctest::Approx(12));
  session->finish({});
  CHECK(job.servers[0].endings().back().commit.factor == 0.25f);
}

TEST_CASE("local steps move the worker's own weights; a round's change travels as one step") {
  Job job;
  job.scheduler.settings["local_steps"] = "2";
  job.scheduler.settings["local_learning_rate"] = "0.5";
  auto session = job.start();
  job.step(*session, 1);
  CHECK(session->clock() == Clock(1));
  REQUIRE(session->begin_step());
  CHECK(floats(session->weights(job.a)) == Floats{0.5, 1.5, 2.5, 3.5, 4.5, 5.5});
  for (const FakeServer& server : job.servers) CHECK(server.endings().size() == 1);  // initial
  session->push(job.a, Floats(6, 8 * 0.5f));
  session->push(job.b, Floats(3, 8 * 0.5f));
  session->commit({.samples = 16});
  CHECK(session->clock() == Clock(2));
  REQUIRE(job.servers[0].has_endings(2));
  CHECK(job.servers[0].endings()[1].commit.samples == 48);

  // A step that is skipped moves nothing; a round that is cut short is sent when it has to be.
  REQUIRE(session->begin_step());
  CHECK(floats(session->weights(job.a)) == Floats{0.25, 1.25, 2.25, 3.25, 4.25, 5.25});
  session->push(job.a, Floats(6, std::numeric_limits<float>::infinity()));
  session->push(job.b, Floats(3, 1));
  CHECK(session->commit({.samples = 32}).skipped);
  job.step(*session, 0.5f);
  job.step(*session, 0.25f);
  CHECK(session->clock() == Clock(5));
  session->pull_final();
  CHECK(floats(session->weights(job.a)) == Floats{-0.125, 0.875, 1.875, 2.875, 3.875, 4.875});
  session->finish({});
  const auto report = job.scheduler.finished();
  REQUIRE(report);
  CHECK(report->clock == 3);
  CHECK(report->samples == 144);
  CHECK(report->skipped_steps == 1);
}

TEST_CASE("a round of local steps that is dropped leaves the weights as they were pulled") {
  Job job;
  job.scheduler.settings["local_steps"] = "2";
  job.scheduler.settings["local_learning_rate"] = "1e10";
  auto session = job.start();
  job.step(*session, 1e30f);  // too far for FP32
  job.step(*session, 0);
  REQUIRE(session->begin_step());
  CHECK(floats(session->weights(job.a)) == Floats{1, 2, 3, 4, 5, 6});
  session->push(job.a, Floats(6, 0));
  session->push(job.b, Floats(3, 0));
  session->commit({});
  session->finish({});
  CHECK(job.servers[0].endings()[1].commit.ending == Ending::kAbandon);
}

TEST_CASE("N4: one infinity anywhere skips the whole step on every server, counted once") {
  Job job;
  auto session = job.start();
  job.step(*session, 1);
  REQUIRE(session->begin_step());
  Floats gradient(6, 8);
  gradient[5] = std::numeric_limits<float>::infinity();
  session->push(job.b, Floats(3, 8));
  session->push(job.a, gradient);
  const StepResult result = session->commit({.samples = 32});
  CHECK(result.skipped);
  CHECK(result.loss_scale == 4);
  job.step(*session, 1);
  session->finish({});
  CHECK(job.scheduler.finished()->skipped_steps == 1);
  CHECK(job.scheduler.finished()->loss_scale == 4);
  for (FakeServer& server : job.servers) {
    const auto endings = server.endings();
    REQUIRE(endings.size() == 4);
    CHECK(endings[1].commit.ending == Ending::kCommit);
    CHECK(endings[2].commit.ending == Ending::kAbandon);
    CHECK(endings[3].commit.ending == Ending::kCommit);
    CHECK(endings[3].payloads == (&server == &job.servers[0] ? 2 : 1));
  }
  CHECK(job.servers[0].masters().at(PartitionId(2)) == Floats{5, 6, 7});
  CHECK(job.servers[1].masters().at(PartitionId(1)) == Floats{3, 4});
}

TEST_CASE("N4: --inject nonfinite skips its step alone") {
  Job job;
  auto session = job.start({.inject = "nonfinite:worker=0,at_step=1;nonfinite:worker=1,at_step=0"});
  CHECK(!job.step(*session, 1).skipped);
  CHECK(job.step(*session, 1).skipped);
  CHECK(!job.step(*session, 1).skipped);
  session->finish({});
}

TEST_CASE("N2: not finite from step 0 stops at the minimum scale, masters as at the start") {
  Job job;
  auto session = job.start();
  std::string error;
  for (int step = 0; step < 10 && error.empty(); ++step) {
    REQUIRE(session->begin_step());
    session->push(job.b, Floats(3, std::numeric_limits<float>::quiet_NaN()));
    session->push(job.a, Floats(6, 1));
    if (step < 3) {
      CHECK(session->commit({}).skipped);
    } else {
      error = error_of([&] { session->commit({}); });
    }
  }
  CHECK(contains(error, "worker.0: step 3: the loss scale is at its minimum"));
  CHECK(contains(*job.scheduler.fault(), "the loss scale is at its minimum"));
  session.reset();
  CHECK(job.servers[0].masters().at(PartitionId(0)) == Floats{1, 2, 3, 4});
  CHECK(job.servers[0].masters().at(PartitionId(2)) == Floats{7, 8, 9});
}

}  // namespace leeway::worker
