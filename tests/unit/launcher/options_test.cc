#include "scheduler/launcher/options.h"

#include <doctest/doctest.h>

#include "tests/unit/launcher/scratch.h"

namespace leeway::launcher {
namespace {

using Arguments = std::vector<std::string>;
using Environment = std::map<std::string, std::string>;

LaunchPlan plan_of(const Arguments& arguments, const Environment& environment = {}) {
  const Parsed parsed = parse_options(arguments, environment);
  REQUIRE(parsed.plan);
  return *parsed.plan;
}

std::string error_of(const Arguments& arguments, const Environment& environment = {}) {
  try {
    parse_options(arguments, environment);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("every flag arrives where it belongs") {
  const LaunchPlan plan = plan_of({"--servers",
                                   "2",
                                   "--workers=3",
                                   "--staleness",
                                   "inf",
                                   "--update",
                                   "per_clock",
                                   "--fabric",
                                   "tcp",
                                   "--bind",
                                   "10.0.0.1",
                                   "--checkpoint-dir",
                                   "ckpt",
                                   "--checkpoint-every",
                                   "50",
                                   "--resume",
                                   "auto",
                                   "--max-restarts",
                                   "2",
                                   "--log-dir",
                                   "logs",
                                   "--summary",
                                   "s.json",
                                   "--set",
                                   "seed=7",
                                   "--set",
                                   "learning_rate=0.5",
                                   "--inject",
                                   "slow:worker=2,factor=5",
                                   "--inject",
                                   "kill:server=1,at_step=9",
                                   "--",
                                   "train",
                                   "--servers",
                                   "9",
                                   "--"});
  CHECK(plan.run.servers == 2);
  CHECK(plan.run.workers == 3);
  CHECK(plan.run.fabric.value == "tcp");
  CHECK(plan.run.bind == "10.0.0.1");
  CHECK(plan.run.max_restarts == 2);
  CHECK(plan.job.staleness.infinite());
  CHECK(plan.injections.size() == 2);
  CHECK(plan.inject == "slow:worker=2,factor=5;kill:server=1,at_step=9");
  CHECK(plan.program == Arguments{"train", "--servers", "9", "--"});
  CHECK(plan.job_set == Environment{{"staleness", "inf"},
                                    {"update", "per_clock"},
                                    {"checkpoint_every", "50"},
                                    {"seed", "7"},
                                    {"learning_rate", "0.5"}});
}

TEST_CASE("file < environment < flag, and what nobody set is left to the program") {
  const Scratch scratch;
  const std::string file = (scratch.path() / "job.toml").string();
  scratch.write("job.toml",
                "staleness = 1\nseed = 3\nlearning_rate = 0.5\n[run]\nservers = 4\nworkers = 2\n");
  const LaunchPlan plan =
      plan_of({file, "--staleness", "8", "--", "x"},
              {{"LEEWAY_STALENESS", "2"}, {"LEEWAY_SEED", "4"}, {"LEEWAY_WORKERS", "5"}});
  CHECK(plan.job.staleness.value == 8);
  CHECK(plan.job.seed == 4);
  CHECK(plan.run.servers == 4);
  CHECK(plan.run.workers == 5);
  CHECK(plan.job_set.at("learning_rate") == "0.5");
  CHECK(plan.job_set.count("momentum") == 0);
}

TEST_CASE("an empty job file has every default, a directory is no job file") {
  const Scratch scratch;
  scratch.write("job.toml", "");
  const LaunchPlan plan = plan_of({(scratch.path() / "job.toml").string(), "--", "x"});
  CHECK(plan.run.servers == 1);
  CHECK(plan.job_set.empty());
  CHECK(error_of({scratch.path().string(), "--", "x"}).ends_with("cannot be read: Is a directory"));
}

TEST_CASE("a wrong setting stops with file, line, key and the nearest one") {
  const Scratch scratch;
  const std::string file = (scratch.path() / "job.toml").string();
  const auto with = [&](const std::string& text) {
    scratch.write("job.toml", text);
    return error_of({file, "--", "x"});
  };
  CHECK(with("\nstalenes = 1\n") ==
        file + ":2: unknown setting 'stalenes' (did you mean 'staleness'?)");
  CHECK(with("[run]\nserver = 2\n") ==
        file + ":2: unknown setting 'server' (did you mean 'servers'?)");
  CHECK(with("[runn]\nservers = 2\n").find("unknown table [runn]") != std::string::npos);
  CHECK(with("seed = [\n").starts_with(file + ":"));
  CHECK(with("[run]\nservers = -1\n").starts_with(file + ":2: servers = '-1' is not valid"));
  CHECK(error_of({"nowhere.toml", "--", "x"}).starts_with("job file nowhere.toml cannot be read"));
  CHECK(error_of({"--set", "seeed=1", "--", "x"}) ==
        "flag --set: unknown setting 'seeed' (did you mean 'seed'?)");
  CHECK(error_of({"--set", "seed", "--", "x"}) == "flag --set seed: it takes KEY=VALUE");
  CHECK(error_of({"--staleness", "-1", "--", "x"})
            .starts_with("flag --staleness: staleness = '-1' is not valid"));
  CHECK(error_of({"--", "x"}, {{"LEEWAY_UPDATE", "often"}})
            .starts_with("environment LEEWAY_UPDATE: update = 'often' is not valid"));
}

TEST_CASE("F2: an unknown flag and a missing program are one line each") {
  CHECK(error_of({"--fabrik", "tcp", "--", "x"}) ==
        "unknown flag '--fabrik' (did you mean '--fabric'?)");
  CHECK(error_of({"--xyzzyplugh=3", "--", "x"}) ==
        "unknown flag '--xyzzyplugh'; see leeway-run --help");
  CHECK(error_of({}).starts_with("no program to run"));
  CHECK(error_of({"--servers", "2", "--"}).starts_with("no program to run"));
  CHECK(error_of({"job.toml", "train", "--", "x"}).starts_with("unexpected argument 'train'"));
  CHECK(error_of({"--servers"}).find('\n') == std::string::npos);
  CHECK(error_of({"--servers"}) != "");
  CHECK(error_of({"--servers", "1", "--servers", "2", "--", "x"}) != "");
}

TEST_CASE("F2: settings that need another setting name it") {
  CHECK(error_of({"--checkpoint-every", "5", "--", "x"}).find("--checkpoint-dir") !=
        std::string::npos);
  CHECK(error_of({"--max-restarts", "1", "--", "x"}).find("--checkpoint-dir") != std::string::npos);
  CHECK(error_of({"--resume", "000003", "--", "x"}).find("--checkpoint-dir") != std::string::npos);
  CHECK(error_of({"--resume", "auto", "--", "x"}) ==
        "resume = auto needs a checkpoint directory (--checkpoint-dir)");
  CHECK(error_of({"--servers", "0", "--", "x"}).starts_with("servers = 0"));
  CHECK(error_of({"--inject", "kill:worker=3,at_step=1", "--workers", "3", "--", "x"}) ==
        "--inject names worker 3, but there are 3 workers (0 to 2)");
  CHECK(error_of({"--inject", "explode", "--", "x"}).starts_with("--inject explode: "));
  CHECK(error_of({"--set", "momentum=1.5", "--", "x"}) == "momentum = 1.5 is not in [0, 1)");
}

TEST_CASE("--help and --print-config print and run nothing; the printed file can be read again") {
  CHECK(parse_options({"--help"}, {}).text.find("loss_scale_growth_interval") != std::string::npos);
  const Parsed printed =
      parse_options({"--staleness", "3", "--servers", "2", "--print-config"}, {});
  CHECK(!printed.plan);
  const Scratch scratch;
  scratch.write("again.toml", printed.text);
  const LaunchPlan plan = plan_of({(scratch.path() / "again.toml").string(), "--", "x"});
  CHECK(plan.job.staleness.value == 3);
  CHECK(plan.run.servers == 2);
}

TEST_CASE("a variable that looks like a setting but is none is noted") {
  const LaunchPlan plan =
      plan_of({"--", "x"}, {{"LEEWAY_STALENES", "3"}, {"LEEWAY_BIN_PATH", "a:b"}});
  REQUIRE(plan.notes.size() == 1);
  CHECK(plan.notes[0].find("did you mean 'LEEWAY_STALENESS'?") != std::string::npos);
}

}  // namespace leeway::launcher
