// Jobs that train Fashion-MNIST: results, bits, staleness, resume.
#include <doctest/doctest.h>

#include <csignal>

#include "storage/digest.h"
#include "tests/cluster/job.h"
#include "tests/unit/worker/data_nn/local_loop.h"
#include "worker/data/fashion_mnist.h"

namespace leeway::cluster {
namespace {

// Small enough for seconds, large enough that tensors are cut and spread over servers.
constexpr int kWidth = 32;
constexpr int kBatch = 200;
constexpr const char* kRate = "0.01";

std::vector<std::string> program(int epochs = 1) {
  return {"fashion_mnist",
          "--epochs",
          std::to_string(epochs),
          "--width",
          std::to_string(kWidth),
          "--batch",
          std::to_string(kBatch),
          "--learning-rate",
          kRate,
          "--device",
          "cpu"};
}

void synchronous(Job& job, int servers, int workers) {
  job.servers(servers).workers(workers).flag("--staleness", "0").flag("--update", "per_clock");
  job.set("partition_elements", "4096").set("seed", "1");
}

const JobResult& succeed(Job& job) {
  const JobResult& result = job.run();
  REQUIRE_MESSAGE(result.exit_code == 0, result.output);
  REQUIRE(!result.summary.text.empty());
  CHECK(result.summary.result == "ok");
  CHECK(result.summary.reason.empty());
  CHECK(result.summary.violations == 0);
  return result;
}

std::string digest_of(int servers, int workers, int epochs = 1) {
  const TemporaryDirectory checkpoints;
  Job job;
  synchronous(job, servers, workers);
  job.checkpoints(checkpoints.path()).program(program(epochs));
  succeed(job);
  return checkpoint_digest(checkpoints.path());
}

std::string local_digest(int workers) {
  const auto open = [](auto part) {
    return value_or_throw(
        worker::data::FashionMnist::open(worker::data::kFashionMnistDirectory, part));
  };
  worker::LocalTrainingOptions options;
  options.settings.update.value = "per_clock";
  options.settings.learning_rate = options.program.learning_rate = std::stod(kRate);
  options.workers = static_cast<std::uint32_t>(workers);
  options.program.epochs = 1;
  options.program.batch = kBatch;
  options.program.width = kWidth;
  const auto result =
      worker::local_training(open(worker::data::FashionMnist::Part::kTrain),
                             open(worker::data::FashionMnist::Part::kTest), options);
  storage::ModelDigest digest;
  for (const worker::LocalTensor& tensor : result.tensors) {
    digest.begin_tensor(tensor.name, tensor.shape);
    digest.add(tensor.master);
  }
  return digest.hex();
}

}  // namespace

TEST_SUITE_BEGIN("cluster");

TEST_CASE("a quick job trains, reports itself and ends with every role at 0 (M7)") {
  Job job;
  job.servers(2).workers(3).flag("--staleness", "2").program(program());
  const JobResult& result = succeed(job);
  const JobSummary& summary = result.summary;
  CHECK(summary.metrics.at("test_accuracy") > 0.7);
  CHECK(summary.samples == 60000);
  CHECK(summary.steps == 60000 / kBatch);
  CHECK(summary.exit_codes.size() == 6);
  for (const auto& [who, code] : summary.exit_codes) CHECK_MESSAGE(code == 0, who);
  CHECK(summary.staleness_bound == "2");
  CHECK(result.output.find("server.0") != std::string::npos);
}

TEST_CASE("same bits on 1, 2 and 3 servers, and as one process computes them") {
  const std::string expected = local_digest(3);
  for (int servers : {1, 2, 3}) CHECK(digest_of(servers, 3) == expected);
}

TEST_CASE("C1: one worker at staleness 0 equals local training") {
  CHECK(digest_of(2, 1) == local_digest(1));
}

TEST_CASE("every gradient codec trains as well as FP16") {
  const auto accuracy = [](std::string_view codec) {
    Job job;
    synchronous(job, 2, 2);
    job.set("gradient_codec", std::string(codec)).set("topk_fraction", "0.1").program(program());
    return succeed(job).summary.metrics.at("test_accuracy");
  };
  const double plain = accuracy("f16");
  CHECK(plain > 0.7);
  for (const char* codec : {"bf16", "fp8_e4m3", "fp8_e5m2", "int8", "topk"}) {
    CAPTURE(codec);
    CHECK(accuracy(codec) > plain - 0.01);
  }
}

TEST_CASE("observed staleness never exceeds the bound") {
  for (const std::string bound : {"0", "1", "4", "inf"}) {
    CAPTURE(bound);
    Job job;
    job.servers(2).workers(3).flag("--staleness", bound).program(program());
    const JobSummary& summary = succeed(job).summary;
    CHECK(summary.staleness_bound == bound);
    if (bound != "inf") CHECK(summary.max_observed <= std::stol(bound));
    long pulls = 0;
    for (long count : summary.histogram) pulls += count;
    CHECK(pulls >= summary.steps);
  }
}

// With topk what the workers have not sent yet, too.
TEST_CASE("top-k: interrupted and resumed equals uninterrupted") {
  const auto top_k = [](Job& job, const TemporaryDirectory& checkpoints) {
    synchronous(job, 2, 2);  // what it chooses depends on what lies together
    job.set("gradient_codec", "topk").set("topk_fraction", "0.05").set("clip_norm", "2");
    job.checkpoints(checkpoints.path()).program(program(2));
  };
  const TemporaryDirectory whole, cut;
  {
    Job job;
    top_k(job, whole);
    succeed(job);
  }
  {
    Job job;
    top_k(job, cut);
    job.set("checkpoint_every", "40");
    job.start();
    job.wait_for("is whole");
    job.kill_member("leeway-run", SIGINT);
    CHECK(job.finish().exit_code == 130);
  }
  Job job;
  top_k(job, cut);
  job.flag("--resume", "auto");
  const JobResult& result = succeed(job);
  CHECK(result.summary.steps < 2 * 60000 / kBatch);
  CHECK(result.output.find("begins without") == std::string::npos);
  CHECK(checkpoint_digest(cut.path()) == checkpoint_digest(whole.path()));
}

TEST_CASE("interrupted and resumed equals uninterrupted") {
  for (int workers : {1, 3}) {
    CAPTURE(workers);
    const std::string expected = digest_of(2, workers, 2);
    const TemporaryDirectory checkpoints;
    {
      Job job;
      synchronous(job, 2, workers);
      job.checkpoints(checkpoints.path()).set("checkpoint_every", "40").program(program(2));
      job.start();
      job.wait_for("is whole");  // the first checkpoint: it is well under way
      job.kill_member("leeway-run", SIGINT);
      const JobResult& result = job.finish();
      CHECK_MESSAGE(result.exit_code == 130, result.output);
      REQUIRE(!result.summary.text.empty());
      CHECK(result.summary.reason.starts_with("interrupted"));
      REQUIRE_MESSAGE(!result.summary.last_checkpoint.empty(), result.output);
    }
    Job job;
    synchronous(job, 1, workers);  // another number of servers
    job.checkpoints(checkpoints.path()).flag("--resume", "auto").program(program(2));
    const JobSummary& summary = succeed(job).summary;
    CHECK(summary.steps < 2 * 60000 / kBatch);
    CHECK(checkpoint_digest(checkpoints.path()) == expected);
  }
}

namespace {

// The first layer's weights are cut and lie on all servers; biases are spared.
void with_lamb(Job& job, int servers, int workers) {
  synchronous(job, servers, workers);
  job.set("optimizer", "lamb").set("weight_decay", "0.01").set("weight_decay_skip", "*bias*");
  job.set("checkpoint_every", "20");
}

std::string lamb_digest(int servers) {
  const TemporaryDirectory checkpoints;
  Job job;
  with_lamb(job, servers, 2);
  job.checkpoints(checkpoints.path()).program(program());
  CHECK(succeed(job).summary.metrics.at("test_accuracy") > 0.7);
  return checkpoint_digest(checkpoints.path());
}

}  // namespace

TEST_CASE("lamb: same bits on 1, 2 and 3 servers, resumed on another number, and after a death") {
  const std::string expected = lamb_digest(1);
  for (const int servers : {2, 3}) CHECK(lamb_digest(servers) == expected);
  const TemporaryDirectory checkpoints;
  {
    Job job;
    with_lamb(job, 3, 2);
    job.checkpoints(checkpoints.path()).flag("--inject", "kill:server=1,at_step=70");
    job.program(program());
    const JobResult& result = job.run();
    CHECK_MESSAGE(result.exit_code != 0, result.output);
    CHECK(result.summary.reason == "server 1: was killed by SIGKILL");
  }
  Job job;
  with_lamb(job, 2, 2);
  job.checkpoints(checkpoints.path()).flag("--resume", "auto").program(program());
  job.flag("--max-restarts", "1").flag("--inject", "kill:server=1,at_step=130");
  const JobSummary& summary = succeed(job).summary;
  CHECK(summary.restarts == 1);
  CHECK(checkpoint_digest(checkpoints.path()) == expected);
}

TEST_SUITE_END();

}  // namespace leeway::cluster
