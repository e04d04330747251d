// The command line of `leeway-ckpt`, apart from what its commands do.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ostream>

#include "common/knobs.h"
#include "storage/ckpt_commands.h"

namespace leeway::storage {
namespace {

struct Command {
  const char* name;
  const char* summary;
  Status (*run)(const CkptOptions&, std::ostream&);
};

constexpr Command kCommands[] = {
    {"list", "the committed checkpoints, oldest first", list_checkpoints},
    {"verify", "read everything and check it", verify_checkpoints},
    {"inspect", "digest, clocks, tensors and settings of one checkpoint", inspect_checkpoint},
    {"export", "write the weights of one checkpoint into a safetensors file", export_checkpoint},
};

std::vector<std::string> command_names() {
  std::vector<std::string> names;
  for (const Command& command : kCommands) names.emplace_back(command.name);
  return names;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& words) {
  const std::string near = nearest(word, words);
  return near.empty() ? "" : fmt::format("; did you mean {}?", near);
}

void add_command(CLI::App& app, const Command& command, CkptOptions& options) {
  CLI::App* sub = app.add_subcommand(command.name, command.summary);
  sub->add_option("DIR", options.directory, "the checkpoint directory")->required();
  sub->add_flag("--json", options.json, "print JSON");
  const std::string name = command.name;
  if (name != "list")
    sub->add_option("--checkpoint", options.checkpoint,
                    name == "verify" ? "only this one" : "which one; without it the newest");
  if (name == "inspect") sub->add_flag("--digest", options.digest, "print the digest alone");
  if (name == "export")
    sub->add_option("--output", options.output, "the file to write")->required();
}

// The library's message for an unknown flag names it but no other.
std::string with_nearest_flag(const std::string& message,
                              const std::vector<std::string>& arguments) {
  const std::vector<std::string> flags = {"--json", "--checkpoint", "--digest", "--output",
                                          "--help"};
  for (const std::string& argument : arguments) {
    const std::string flag = argument.substr(0, argument.find('='));
    if (flag.starts_with("--") && std::find(flags.begin(), flags.end(), flag) == flags.end())
      return fmt::format("unknown flag {}{}", flag, did_you_mean(flag, flags));
  }
  std::string line = message;
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

}  // namespace

int run_ckpt(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  CkptOptions options;
  CLI::App app("Looks into a checkpoint directory of Leeway; a running job is not disturbed.",
               "leeway-ckpt");
  app.require_subcommand(1);
  for (const Command& command : kCommands) add_command(app, command, options);

  const std::vector<std::string> names = command_names();
  if (!arguments.empty() && !arguments[0].starts_with("-") &&
      std::find(names.begin(), names.end(), arguments[0]) == names.end()) {
    err << fmt::format("leeway-ckpt: unknown command '{}'{}\n", arguments[0],
                       did_you_mean(arguments[0], names));
    return 1;
  }
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    const auto chosen = app.get_subcommands();
    out << (chosen.empty() ? app.help() : chosen[0]->help());
    return 0;
  } catch (const CLI::ParseError& e) {
    err << "leeway-ckpt: " << with_nearest_flag(e.what(), arguments) << '\n';
    return 1;
  }
  for (const Command& command : kCommands) {
    if (!app.got_subcommand(command.name)) continue;
    const Status done = command.run(options, out);
    if (done) return 0;
    err << "leeway-ckpt: " << done.error().message << '\n';
  }
  return 1;
}

}  // namespace leeway::storage
