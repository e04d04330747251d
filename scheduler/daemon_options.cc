#include "scheduler/daemon_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <iterator>

#include "common/job_settings.h"
#include "scheduler/one_line.h"

namespace leeway::scheduler {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw ConfigError(fmt::format("cannot read the job file '{}'", path));
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Layers {
  std::string file;
  std::vector<std::string> assignments;  // KEY=VALUE
};

void apply(Knobs& knobs, const Layers& layers,
           const std::function<const char*(const char*)>& environment) {
  if (!layers.file.empty())
    value_or_throw(knobs.set_from_toml(read_file(layers.file), layers.file));
  value_or_throw(knobs.set_from_environment(environment));
  for (const std::string& assignment : layers.assignments) {
    const std::size_t equals = assignment.find('=');
    if (equals == std::string::npos)
      throw ConfigError(fmt::format("--set {}: write --set KEY=VALUE", one_line(assignment)));
    value_or_throw(knobs.set(assignment.substr(0, equals), assignment.substr(equals + 1),
                             "flag --set " + assignment.substr(0, equals)));
  }
}

}  // namespace

ParsedOptions parse_daemon_options(int argc, char** argv,
                                   const std::function<const char*(const char*)>& environment) {
  DaemonOptions options;
  Layers layers;
  bool print_config = false;
  JobSettings settings;
  Knobs knobs;
  settings.describe(knobs);

  CLI::App app(
      "The scheduler of a Leeway job: who is alive, where every tensor lives, which "
      "checkpoints are whole. Usually leeway-run starts it.",
      "leeway-scheduler");
  app.add_option("--listen", options.listen, "HOST:PORT; port 0 takes a free one")
      ->capture_default_str();
  app.add_option("--servers", options.servers, "how many servers the job has")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  app.add_option("--workers", options.workers, "how many workers the job has")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536));
  app.add_option("--max-workers", options.max_workers,
                 "room for workers that join later, those of --workers included; 0 = none")
      ->capture_default_str()
      ->check(CLI::Range(0, 65536));
  app.add_option("--checkpoint-dir", options.checkpoint_dir, "where checkpoints are kept");
  app.add_option("--resume", options.resume, "auto (the newest checkpoint), never, or an id")
      ->capture_default_str();
  app.add_option("--set", layers.assignments, "KEY=VALUE, a setting of the job; repeatable")
      ->expected(1)
      ->take_all();
  app.add_option("--config", layers.file, "settings from a TOML file");
  app.add_flag("--print-config", print_config, "print every setting and where it came from");
  app.footer([&] {
    return "Settings (--config < LEEWAY_<NAME> < --set):\n" + knobs.help() +
           "\nEnvironment: LEEWAY_TOKEN, the job's secret, which every change needs.";
  });
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return {std::nullopt, app.help()};
  } catch (const CLI::ParseError& error) {
    throw ConfigError(one_line(error.what()) + "; --help tells what there is");
  }
  apply(knobs, layers, environment);
  value_or_throw(settings.check());
  if (print_config) return {std::nullopt, knobs.print_config()};
  value_or_throw(settings.check_members(options.servers, options.workers));

  if (options.max_workers != 0 && options.max_workers < options.workers)
    throw ConfigError(fmt::format("--max-workers {} is less than --workers {}", options.max_workers,
                                  options.workers));
  for (const Knobs::Knob& knob : knobs.all())
    if (knob.source != "default") options.settings[knob.name] = knob.print();
  if (options.checkpoint_dir.empty() && options.resume != "auto" && options.resume != "never")
    throw ConfigError(fmt::format("--resume {} needs --checkpoint-dir", one_line(options.resume)));
  const char* token = environment("LEEWAY_TOKEN");
  if (token == nullptr || *token == '\0')
    throw ConfigError("LEEWAY_TOKEN is not set; it is the secret that members of the job share");
  options.token = token;
  return {std::move(options), ""};
}

}  // namespace leeway::scheduler
