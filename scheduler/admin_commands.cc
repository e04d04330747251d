#include "scheduler/admin_commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>
#include <span>

#include "common/knobs.h"
#include "scheduler/admin_format.h"

namespace leeway::scheduler {
namespace {

struct Context {
  Client& client;
  std::vector<std::string> arguments;
  const std::string& token;
  bool json;
  std::ostream& out;
};

struct Command {
  std::string name;
  std::string arguments;  // as --help shows them
  std::size_t count;      // of arguments
  bool changes;           // needs the token
  std::string help;
  Status (*run)(const Context&);
};

// Asks, and prints the answer in the form that was asked for.
template <typename Ask, typename Text, typename JsonText>
Status show(const Context& context, Ask ask, Text text, JsonText json) {
  auto answer = ask(context.client);
  if (!answer) return tl::unexpected(std::move(answer.error()));
  context.out << (context.json ? json(*answer) : text(*answer));
  return {};
}

Status done(const Context& context, const Status& status, std::string_view text) {
  if (!status) return status;
  if (context.json)
    context.out << "{\"result\": \"ok\"}\n";
  else
    context.out << text << '\n';
  return {};
}

Result<rpc::JobStatus> ask_status(Client& client) { return client.status(); }

Status take_checkpoint(const Context& context) {
  auto id = context.client.checkpoint(context.token);
  if (!id) return tl::unexpected(std::move(id.error()));
  // Ids are digits: no character of one needs escaping.
  context.out << (context.json ? fmt::format("{{\"checkpoint\": \"{}\"}}\n", *id)
                               : fmt::format("checkpoint {} is whole\n", *id));
  return {};
}

std::span<const Command> commands() {
  static const std::vector<Command> kCommands = {
      {"status", "", 0, false, "the job: phase, clocks, rates, last checkpoint",
       [](const Context& c) { return show(c, ask_status, status_text, status_json); }},
      {"workers", "", 0, false, "a line for each worker: clock, observed staleness, rates",
       [](const Context& c) { return show(c, ask_status, workers_text, workers_json); }},
      {"servers", "", 0, false, "a line for each server: shard, memory, applied clocks",
       [](const Context& c) { return show(c, ask_status, servers_text, servers_json); }},
      {"tensors", "", 0, false, "where every tensor lies",
       [](const Context& c) {
         return show(
             c, [](Client& client) { return client.tensors(); }, tensors_text, tensors_json);
       }},
      {"checkpoints", "", 0, false, "the committed checkpoints",
       [](const Context& c) {
         return show(
             c, [](Client& client) { return client.checkpoints(); }, checkpoints_text,
             checkpoints_json);
       }},
      {"checkpoint", "", 0, true, "write one now and wait for it", take_checkpoint},
      {"set", "KEY VALUE", 2, true, "change the learning rate or its schedule while the job runs",
       [](const Context& c) {
         return done(c, c.client.change(c.token, c.arguments[0], c.arguments[1]),
                     fmt::format("{} = {}", c.arguments[0], c.arguments[1]));
       }},
      {"stop", "", 0, true, "checkpoint, then end the job",
       [](const Context& c) {
         return done(c, c.client.stop(c.token, "stopped by leeway-admin"), "the job is stopping");
       }},
  };
  return kCommands;
}

}  // namespace

std::string admin_commands_help() {
  std::string text = "Commands:\n";
  for (const Command& command : commands())
    text +=
        fmt::format("  {:<16} {}\n", command.name + (command.count ? " " : "") + command.arguments,
                    command.help);
  return text;
}

Status run_admin_command(Client& client, const std::vector<std::string>& words,
                         const std::string& token, bool json, std::ostream& out) {
  const auto bad = [](std::string why) { return fail(Code::kInvalidArgument, std::move(why)); };
  if (words.empty()) return bad("no command; --help lists them");
  const auto all = commands();
  const auto command = std::find_if(all.begin(), all.end(),
                                    [&](const Command& c) { return c.name == words.front(); });
  if (command == all.end()) {
    std::vector<std::string> names;
    for (const Command& c : all) names.push_back(c.name);
    const std::string guess = nearest(words.front(), names);
    return bad(fmt::format(
        "unknown command '{}'{}", words.front(),
        guess.empty() ? "; --help lists them" : fmt::format(" (did you mean '{}'?)", guess)));
  }
  if (words.size() - 1 != command->count)
    return bad(fmt::format("{} takes {}", command->name,
                           command->count ? command->arguments : "no arguments"));
  if (command->changes && token.empty())
    return bad(fmt::format("{} needs the job's token in LEEWAY_TOKEN", command->name));
  return command->run({client, {words.begin() + 1, words.end()}, token, json, out});
}

}  // namespace leeway::scheduler
