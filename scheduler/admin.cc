#include "scheduler/admin.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <ostream>

#include "common/log.h"
#include "scheduler/admin_commands.h"
#include "scheduler/endpoint.h"
#include "scheduler/one_line.h"

namespace leeway::scheduler {
namespace {

std::string from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

int run_admin(int argc, char** argv, std::ostream& out, std::ostream& err) {
  std::string address = from_environment("LEEWAY_SCHEDULER");
  bool json = false;
  std::vector<std::string> words;
  CLI::App app("Looks at a running Leeway job and changes it.", "leeway-admin");
  app.add_option("--scheduler", address, "HOST:PORT (default: LEEWAY_SCHEDULER)");
  app.add_flag("--json", json, "print JSON");
  app.add_option("command", words, "what to do, and its arguments")->option_text(" ");
  app.footer(admin_commands_help());
  const auto error = [&](const std::string& text) {
    err << "leeway-admin: " << text << '\n';
    return 1;
  };
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    out << app.help();
    return 0;
  } catch (const CLI::ParseError& bad) {
    return error(one_line(bad.what()) + "; --help tells what there is");
  }
  if (address.empty())
    return error("which scheduler? Give --scheduler HOST:PORT or set LEEWAY_SCHEDULER");
  if (auto parsed = parse_host_port(address); !parsed) return error(parsed.error().message);
  log::start("");
  Client client(address);
  const Status status =
      run_admin_command(client, words, from_environment("LEEWAY_TOKEN"), json, out);
  return status ? 0 : error(one_line(status.error().message));
}

}  // namespace leeway::scheduler
