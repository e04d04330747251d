// What a person and a program read of a job.
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "job_fixture.h"
#include "scheduler/admin_commands.h"
#include "scheduler/admin_format.h"
#include "scheduler/daemon_options.h"
#include "scheduler/service.h"

namespace leeway::scheduler {
namespace {

using nlohmann::json;

rpc::JobStatus a_status() {
  Job job(with_directory(setup_of(2, 2)));
  job.run();
  auto& report = job.worker_reports[0];
  report.clock = 12;
  report.loss = std::numeric_limits<double>::quiet_NaN();
  report.loss_scale = std::numeric_limits<double>::infinity();
  report.metrics["test_accuracy"] = -std::numeric_limits<double>::infinity();
  report.staleness_histogram = {5, 4, 2, 0};
  job.say_worker(0);
  job.server_reports[1].shard_elements = 4711;
  job.server_reports[1].applied = {{0, 12}, {1, 11}};
  job.server_reports[1].waiting = "worker 0 for worker 1";
  job.say_server(1);
  auto status = job.core.status(job.now);
  status.workers[1].host = "bad \xff text";
  return status;
}

TEST_CASE("O1 JSON stays strict when numbers are not finite and text is not UTF-8") {
  const auto status = a_status();
  const json parsed = json::parse(status_json(status));
  const json& worker = parsed.at("workers").at(0);
  CHECK(worker.at("loss").is_null());
  CHECK(worker.at("loss_scale").is_null());
  CHECK(worker.at("metrics").at("test_accuracy").is_null());
  CHECK(worker.at("clock") == 12);
  CHECK(worker.at("provider") == "tcp");
  CHECK(worker.at("staleness").at("max_observed") == 2);
  CHECK(worker.at("staleness").at("histogram").size() == 4);
  CHECK(parsed.at("servers").at(1).at("shard_elements") == 4711);
  CHECK(parsed.at("servers").at(1).at("applied").at("1") == 11);
  CHECK(parsed.at("last_checkpoint").is_null());
  CHECK(json::parse(workers_json(status)).size() == 2);
  CHECK(json::parse(servers_json(status)).at(0).at("role") == "server");
  rpc::TensorStatus row;
  row.name = "w";
  row.shape = {2, 3};
  CHECK(json::parse(tensors_json({row})).at(0).at("shape") == json({2, 3}));
  CHECK(json::parse(checkpoints_json({})).empty());
}

TEST_CASE("O2 tables say what a person looks for") {
  const auto status = a_status();
  const std::string workers = workers_text(status);
  CHECK(contains(workers, "observed staleness 0, 1, ...: 5 4 2 0"));
  CHECK_FALSE(contains(workers, "nan"));
  CHECK(contains(servers_text(status), "4711"));
  CHECK(contains(servers_text(status), "server 1 waits: worker 0 for worker 1"));
  CHECK(contains(status_text(status), "phase        RUNNING"));
  Table table({"name", "n"});
  table.add({"a", "10"});
  table.add({"long", "7"});
  CHECK(table.text() == "name   n\na     10\nlong   7\n");
}

TEST_CASE("N8: the status shows the learning rate that the schedule has come to") {
  rpc::JobStatus status = a_status();
  JobSettings settings;
  settings.learning_rate = 0.5;
  settings.schedule.value = "step";
  settings.schedule_steps = 10;
  settings.schedule_factor = 0.5;
  status.settings = values_of(settings);
  for (rpc::MemberStatus& worker : status.workers) worker.worker.clock = 9;
  CHECK(contains(status_text(status), "learning rate 0.5\n"));
  CHECK(json::parse(status_json(status)).at("learning_rate") == 0.5);
  status.workers.back().worker.clock = 10;
  CHECK(contains(status_text(status), "learning rate 0.25 (0.5, step)\n"));
  CHECK(json::parse(status_json(status)).at("learning_rate") == 0.25);
  status.settings.clear();
  CHECK_NOTHROW(status_text(status));
}

TEST_CASE("commands: what they print, and one line for what they refuse") {
  ServiceOptions options;
  options.token = "token";
  Service service(options, setup_of(1, 1), nullptr);
  Client client(service.address());
  std::ostringstream out;
  const auto run = [&](std::vector<std::string> words, const std::string& token,
                       bool json = false) {
    out.str("");
    return error_of(run_admin_command(client, words, token, json, out));
  };
  CHECK(run({"status"}, "").empty());
  CHECK(contains(out.str(), "GATHERING"));
  for (const char* command : {"status", "workers", "servers", "tensors", "checkpoints"}) {
    CHECK(run({command}, "", true).empty());
    CHECK(json::accept(out.str()));
    CHECK(run({command}, "").empty());
  }
  CHECK(run({"statsu"}, "") == "unknown command 'statsu' (did you mean 'status'?)");
  CHECK(contains(run({}, ""), "no command"));
  CHECK(run({"set", "x"}, "token") == "set takes KEY VALUE");
  CHECK(contains(run({"stop"}, ""), "LEEWAY_TOKEN"));
  CHECK(contains(run({"stop"}, "wrong"), "not the job's token"));
  CHECK(contains(run({"set", "seed", "4"}, "token"), "what can: learning_rate"));
  CHECK(run({"set", "learning_rate", "0.5"}, "token").empty());
  CHECK(out.str() == "learning_rate = 0.5\n");
  CHECK(contains(run({"checkpoint"}, "token"), "--checkpoint-dir"));
  CHECK(run({"stop"}, "token", true).empty());
  CHECK(json::parse(out.str()).at("result") == "ok");
  CHECK(client.status().value().phase == "DONE");
}

ParsedOptions parse(std::vector<std::string> words, const std::map<std::string, std::string>& env) {
  words.insert(words.begin(), "leeway-scheduler");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  return parse_daemon_options(static_cast<int>(argv.size()), argv.data(),
                              [&](const char* name) -> const char* {
                                const auto it = env.find(name);
                                return it == env.end() ? nullptr : it->second.c_str();
                              });
}

std::string refusal(const std::vector<std::string>& words,
                    const std::map<std::string, std::string>& env = {{"LEEWAY_TOKEN", "t"}}) {
  try {
    parse(words, env);
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST_CASE("F2 options of leeway-scheduler: layers, and one line for what is wrong") {
  const auto parsed = parse(
      {"--servers", "2", "--workers", "3", "--set", "staleness=inf", "--set", "learning_rate=0.5"},
      {{"LEEWAY_TOKEN", "t"}, {"LEEWAY_LEARNING_RATE", "0.25"}, {"LEEWAY_MOMENTUM", "0.5"}});
  REQUIRE(parsed.options.has_value());
  CHECK(parsed.options->servers == 2);
  CHECK(parsed.options->workers == 3);
  CHECK(parsed.options->token == "t");
  CHECK(parsed.options->settings ==
        SettingValues{{"learning_rate", "0.5"}, {"momentum", "0.5"}, {"staleness", "inf"}});
  CHECK(contains(refusal({}, {}), "LEEWAY_TOKEN is not set"));
  CHECK(contains(refusal({"--set", "stalenes=1"}), "did you mean 'staleness'"));
  CHECK(contains(refusal({"--set", "staleness"}), "KEY=VALUE"));
  CHECK(contains(refusal({"--set", "beta1=3"}), "beta1 = 3"));
  CHECK(contains(refusal({"--workers", "0"}), "--workers"));
  CHECK(contains(refusal({"--wrokers", "1"}), "--wrokers"));
  CHECK(contains(refusal({"--workers", "2", "--set", "quorum=3", "--set", "update=per_clock"}),
                 "quorum = 3 is more than the job's 2 workers"));
  CHECK(contains(refusal({"--config", "/nowhere/job.toml"}), "/nowhere/job.toml"));
  CHECK(contains(refusal({"--resume", "000004"}), "--checkpoint-dir"));
  CHECK(contains(parse({"--print-config"}, {}).text, "staleness = \"0\""));
  CHECK(contains(parse({"--help"}, {}).text, "checkpoint_every"));
}

}  // namespace
}  // namespace leeway::scheduler
