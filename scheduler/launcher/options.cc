#include "scheduler/launcher/options.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <deque>
#include <fstream>
#include <sstream>

namespace leeway::launcher {
namespace {

constexpr std::uint32_t kMostMembers = 4096;

// The settings that have a flag of their own; the others are set by --set.
struct Flag {
  const char* name;
  const char* knob;
  const char* type;
};
constexpr Flag kFlags[] = {
    {"--servers", "servers", "N"},
    {"--workers", "workers", "N"},
    {"--max-workers", "max_workers", "N"},
    {"--staleness", "staleness", "S"},
    {"--update", "update", "HOW"},
    {"--fabric", "fabric", "NAME"},
    {"--bind", "bind", "ADDRESS"},
    {"--listen", "listen", "HOST:PORT"},
    {"--checkpoint-dir", "checkpoint_dir", "DIR"},
    {"--checkpoint-every", "checkpoint_every", "STEPS"},
    {"--resume", "resume", "WHICH"},
    {"--max-restarts", "max_restarts", "N"},
    {"--log-dir", "log_dir", "DIR"},
    {"--summary", "summary", "FILE"},
};

// Variables that leeway-run hands to others or reads itself, beside those named after settings.
const std::vector<std::string> kOtherVariables = {"LEEWAY_SCHEDULER", "LEEWAY_TOKEN",
                                                  "LEEWAY_INJECT", "LEEWAY_BIN_PATH"};

std::string variable_of(const std::string& knob) {
  std::string name = "LEEWAY_";
  for (char c : knob) name += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

std::string read_job_file(const std::string& path) {
  std::ifstream in(path);
  if (in.peek() == EOF && in.eof()) return "";  // a directory is bad, not at its end
  std::stringstream text;
  if (!in || !(text << in.rdbuf()))
    throw ConfigError(fmt::format("job file {} cannot be read: {}", path, std::strerror(errno)));
  return text.str();
}

// Tables other than [run] would be ignored by Knobs, and a misspelt one with them.
void refuse_unknown_tables(const std::string& document, const std::string& path) {
  toml::table parsed;
  try {
    parsed = toml::parse(document, path);
  } catch (const toml::parse_error& error) {
    throw ConfigError(
        fmt::format("{}:{}: {}", path, error.source().begin.line, error.description()));
  }
  for (const auto& [key, node] : parsed) {
    if (node.is_table() && key.str() != "run")
      throw ConfigError(
          fmt::format("{}:{}: unknown table [{}] (a job file has settings of the job "
                      "at its top and one table, [run])",
                      path, node.source().begin.line, key.str()));
    if (!node.is_table()) continue;
    for (const auto& [inner_key, inner] : *node.as_table())
      if (inner.is_table())
        throw ConfigError(fmt::format("{}:{}: unknown table [run.{}]", path,
                                      inner.source().begin.line, inner_key.str()));
  }
}

void check(const LaunchPlan& plan) {
  const RunSettings& run = plan.run;
  const auto bad = [](const std::string& why) { throw ConfigError(why); };
  for (const auto& [name, count] : {std::pair{"servers", run.servers}, {"workers", run.workers}})
    if (count == 0 || count > kMostMembers)
      bad(fmt::format("{} = {} must be between 1 and {}", name, count, kMostMembers));
  if (run.max_workers > kMostMembers || (run.max_workers != 0 && run.max_workers < run.workers))
    bad(fmt::format("max_workers = {} must be 0 or between workers = {} and {}", run.max_workers,
                    run.workers, kMostMembers));
  if (run.listen.find(':') == std::string::npos)
    bad(fmt::format("listen = '{}' must be HOST:PORT, e.g. 127.0.0.1:0", run.listen));
  if (run.resume.empty()) bad("resume = '' must be auto, never or the id of a checkpoint");
  if (run.checkpoint_dir.empty()) {
    if (run.resume != "never")
      bad(fmt::format("resume = {} needs a checkpoint directory (--checkpoint-dir)", run.resume));
    if (run.max_restarts > 0)
      bad(fmt::format("max_restarts = {} needs a checkpoint directory (--checkpoint-dir)",
                      run.max_restarts));
    if (plan.job.checkpoint_every > 0)
      bad(fmt::format("checkpoint_every = {} needs a checkpoint directory (--checkpoint-dir)",
                      plan.job.checkpoint_every));
  }
  if (auto status = plan.job.check(); !status) bad(status.error().message);
  if (auto status = plan.job.check_members(run.servers, run.workers); !status)
    bad(status.error().message);
  for (const Injection& injection : plan.injections) {
    const std::uint32_t count = injection.server ? run.servers : run.workers;
    const char* role = injection.server ? "server" : "worker";
    if (injection.index >= count)
      bad(fmt::format("--inject names {0} {1}, but there are {2} {0}s (0 to {3})", role,
                      injection.index, count, count - 1));
  }
}

class Parser {
 public:
  explicit Parser(const std::map<std::string, std::string>& environment)
      : environment_(environment) {
    plan_.run.describe(run_);
    plan_.job.describe(job_);
  }

  Parsed parse(const std::vector<std::string>& arguments) {
    const auto dashes = std::find(arguments.begin(), arguments.end(), "--");
    declare_flags();
    // CLI11 takes its arguments from the back.
    std::vector<std::string> reversed(std::make_reverse_iterator(dashes),
                                      std::make_reverse_iterator(arguments.begin()));
    try {
      app_.parse(std::move(reversed));
    } catch (const CLI::CallForHelp&) {
      return {.plan = std::nullopt, .text = app_.help()};
    } catch (const CLI::ParseError& error) {
      throw ConfigError(fmt::format("{}; see leeway-run --help", error.what()));
    }
    refuse_extras();
    apply_layers();
    if (print_config_) return {.plan = std::nullopt, .text = config_text()};

    if (dashes != arguments.end()) plan_.program.assign(dashes + 1, arguments.end());
    if (plan_.program.empty())
      throw ConfigError(
          "no program to run: leeway-run [FLAGS] -- PROGRAM [ARGS...]; see leeway-run --help");
    check(plan_);
    for (const Knobs::Knob& knob : job_.all())
      if (knob.source != "default") plan_.job_set[knob.name] = knob.print();
    return {.plan = plan_, .text = ""};
  }

 private:
  void declare_flags() {
    app_.name("leeway-run");
    app_.add_option("job", job_file_, "job file: job settings, and a table [run]")
        ->type_name("job.toml");
    for (const Flag& flag : kFlags) {
      const Knobs::Knob* knob = knobs_of(flag.knob).find(flag.knob);
      LEEWAY_CHECK(knob != nullptr);
      options_.push_back(
          app_.add_option(flag.name, values_.emplace_back(),
                          fmt::format("{} [{}; default {}]", knob->reason, knob->unit,
                                      knob->default_text.empty() ? "none" : knob->default_text))
              ->type_name(flag.type));
    }
    app_.add_option("--set", sets_, "a job setting, see below; repeatable")
        ->type_name("KEY=VALUE")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    app_.add_option("--inject", injects_,
                    "a fault to try: slow:worker=2,factor=5  kill:worker=1,at_step=200  "
                    "kill:server=0,at_step=300  pause:worker=0,at_step=100,seconds=20  "
                    "nonfinite:worker=1,at_step=50; repeatable")
        ->type_name("FAULT")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    app_.add_flag("--print-config", print_config_, "print every setting as a job file, and exit");
    app_.allow_extras();
    app_.footer(
        "Job settings, in job.toml, as LEEWAY_<NAME> or by --set NAME=VALUE (later ones "
        "win):\n" +
        job_.help() +
        "\nPROGRAM is a path, or a name looked up in LEEWAY_BIN_PATH (for development), "
        "beside leeway-run\nand in PATH.");
  }

  void refuse_extras() {
    const std::vector<std::string> extras = app_.remaining();
    if (extras.empty()) return;
    const std::string& extra = extras.front();
    if (!extra.starts_with("-"))
      throw ConfigError(fmt::format(
          "unexpected argument '{}': the program and its arguments come after --", extra));
    std::vector<std::string> known = {"--set", "--inject", "--print-config", "--help"};
    for (const Flag& flag : kFlags) known.emplace_back(flag.name);
    const std::string name = extra.substr(0, extra.find('='));
    const std::string guess = nearest(name, known);
    throw ConfigError(fmt::format(
        "unknown flag '{}'{}", name,
        guess.empty() ? "; see leeway-run --help" : fmt::format(" (did you mean '{}'?)", guess)));
  }

  void apply_layers() {
    if (!job_file_.empty()) {
      const std::string document = read_job_file(job_file_);
      refuse_unknown_tables(document, job_file_);
      value_or_throw(job_.set_from_toml(document, job_file_));
      value_or_throw(run_.set_from_toml(document, job_file_, "run"));
    }
    const auto lookup = [this](const char* name) -> const char* {
      const auto it = environment_.find(name);
      return it == environment_.end() ? nullptr : it->second.c_str();
    };
    value_or_throw(job_.set_from_environment(lookup));
    value_or_throw(run_.set_from_environment(lookup));
    note_unknown_variables();

    for (std::size_t i = 0; i < options_.size(); ++i) {
      if (options_[i]->count() == 0) continue;
      value_or_throw(knobs_of(kFlags[i].knob)
                         .set(kFlags[i].knob, values_[i], fmt::format("flag {}", kFlags[i].name)));
    }
    for (const std::string& text : sets_) {
      const auto equals = text.find('=');
      if (equals == std::string::npos)
        throw ConfigError(fmt::format("flag --set {}: it takes KEY=VALUE", text));
      value_or_throw(job_.set(text.substr(0, equals), text.substr(equals + 1), "flag --set"));
    }
    for (const std::string& text : injects_) {
      const auto injections = value_or_throw(parse_injections(text));
      plan_.injections.insert(plan_.injections.end(), injections.begin(), injections.end());
      plan_.inject += (plan_.inject.empty() ? "" : ";") + text;
    }
  }

  // Only a note: another program's variable may happen to begin with LEEWAY_.
  void note_unknown_variables() {
    std::vector<std::string> known = kOtherVariables;
    for (const Knobs* knobs : {&job_, &run_})
      for (const Knobs::Knob& knob : knobs->all()) known.push_back(variable_of(knob.name));
    for (const auto& [name, value] : environment_) {
      if (!name.starts_with("LEEWAY_") || std::count(known.begin(), known.end(), name) != 0)
        continue;
      const std::string guess = nearest(name, known);
      plan_.notes.push_back(
          fmt::format("environment {} is no setting{}", name,
                      guess.empty() ? "" : fmt::format(" (did you mean '{}'?)", guess)));
    }
  }

  std::string config_text() const {
    return job_.print_config() + "\n[run]\n" + run_.print_config();
  }

  Knobs& knobs_of(const char* knob) { return run_.find(knob) != nullptr ? run_ : job_; }

  const std::map<std::string, std::string>& environment_;
  LaunchPlan plan_;
  Knobs run_, job_;
  CLI::App app_{
      "leeway-run [job.toml] [FLAGS] -- PROGRAM [ARGS...]\n"
      "leeway-run worker [FLAGS] -- PROGRAM [ARGS...]   joins a job that runs; worker --help\n"
      "leeway-run doctor [FLAGS]     what this machine has, and what to change; doctor --help\n"
      "Starts a job (scheduler, servers, workers), watches it, leaves nothing behind."};
  std::string job_file_;
  std::deque<std::string> values_;  // of kFlags, in order; addresses stay
  std::vector<CLI::Option*> options_;
  std::vector<std::string> sets_, injects_;
  bool print_config_ = false;
};

}  // namespace

void RunSettings::describe(Knobs& k) {
  k.add("servers", servers, "processes", "how many share the model");
  k.add("workers", workers, "processes", "how many copies of PROGRAM train it");
  k.add("max_workers", max_workers, "processes",
        "room for workers that join later, those of workers included; 0 = none");
  k.add("fabric", fabric, "what moves gradients and weights; auto takes the fastest there is");
  k.add("bind", bind, "address", "where servers and workers open their end of the fabric");
  k.add("listen", listen, "HOST:PORT", "where the scheduler answers; port 0 = any free one");
  k.add("checkpoint_dir", checkpoint_dir, "directory", "where checkpoints are written");
  k.add("resume", resume, "auto|never|ID", "auto goes on from the newest checkpoint, if any");
  k.add(
      "max_restarts", max_restarts, "times",
      "start again from the last checkpoint when a server, the scheduler or every worker vanished");
  k.add("log_dir", log_dir, "directory", "a log file a member; leeway-logs/TIME when not set");
  k.add("summary", summary, "file", "strict JSON about the run, written also when it failed");
}

Parsed parse_options(const std::vector<std::string>& arguments,
                     const std::map<std::string, std::string>& environment) {
  return Parser(environment).parse(arguments);
}

std::optional<JoinPlan> parse_join_options(const std::vector<std::string>& arguments,
                                           const std::map<std::string, std::string>& environment,
                                           std::string& help) {
  JoinPlan plan{.environment = environment};
  std::string scheduler, job, rank = "auto", fabric, bind;
  CLI::App app(
      "leeway-run worker [FLAGS] -- PROGRAM [ARGS...]\n"
      "Becomes PROGRAM as one worker of a job that runs: in the place of one that died, or of its "
      "own where\nthe job has room (--max-workers). LEEWAY_TOKEN must be the job's.");
  app.name("leeway-run worker");
  app.add_option("--scheduler", scheduler, "HOST:PORT of the job; else LEEWAY_SCHEDULER");
  app.add_option("--job", job, "log directory of a job of this machine: its address and token");
  app.add_option("--rank", rank, "the place to take [default auto: any that is free]");
  app.add_option("--fabric", fabric, "as the job's; else LEEWAY_FABRIC, else auto");
  app.add_option("--bind", bind, "address of this node; else LEEWAY_BIND, else 127.0.0.1");
  const auto dashes = std::find(arguments.begin(), arguments.end(), "--");
  try {
    app.parse(std::vector<std::string>(std::make_reverse_iterator(dashes),
                                       std::make_reverse_iterator(arguments.begin())));
  } catch (const CLI::CallForHelp&) {
    help = app.help();
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw ConfigError(fmt::format("worker: {}; see leeway-run worker --help", error.what()));
  }
  if (dashes != arguments.end()) plan.program.assign(dashes + 1, arguments.end());
  if (plan.program.empty())
    throw ConfigError("no program to run: leeway-run worker [FLAGS] -- PROGRAM [ARGS...]");
  const auto set = [&](const char* name, const std::string& value) {
    if (!value.empty()) plan.environment[name] = value;
  };
  if (!job.empty()) {
    std::ifstream file(job + "/job.env");
    std::string line;
    for (; std::getline(file, line);)
      if (const auto equals = line.find('='); equals != std::string::npos)
        plan.environment[line.substr(0, equals)] = line.substr(equals + 1);
    if (!file.eof())
      throw ConfigError(
          fmt::format("{}/job.env cannot be read: no job runs with this log "
                      "directory on this machine",
                      job));
  }
  set("LEEWAY_SCHEDULER", scheduler);
  set("LEEWAY_FABRIC", fabric);
  set("LEEWAY_BIND", bind);
  for (const char* name : {"LEEWAY_SCHEDULER", "LEEWAY_TOKEN"})
    if (plan.environment[name].empty())
      throw ConfigError(
          fmt::format("{} is not set: which job is it? --job LOG_DIRECTORY on the machine of its "
                      "leeway-run, or --scheduler HOST:PORT and its token in LEEWAY_TOKEN",
                      name));
  plan.environment["RANK"] = rank;
  plan.environment["WORLD_SIZE"] = "auto";
  plan.environment.try_emplace("LOCAL_RANK", "0");
  return plan;
}

}  // namespace leeway::launcher
