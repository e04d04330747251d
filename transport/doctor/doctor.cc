#include "transport/doctor/doctor.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <ostream>

#include "common/knobs.h"
#include "common/result.h"
#include "transport/doctor/facts.h"
#include "transport/doctor/report.h"
#include "transport/inventory.h"
#include "transport/numa_bind.h"
#include "transport/topology_file.h"

namespace leeway::doctor {
namespace {

constexpr std::size_t kLongestFile = 2 << 20;  // the parser's own bound is lower

struct Options {
  Choice fabric{"auto", {"auto", "efa", "verbs", "tcp", "shm"}};
  std::vector<std::string> devices;
  std::optional<std::uint64_t> memory;
  std::string topology, record;
  bool json = false;
};

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text(kLongestFile, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad() || (in.fail() && !in.eof()))
    throw ConfigError(fmt::format("{} cannot be read: {}", path, std::strerror(errno)));
  text.resize(static_cast<std::size_t>(in.gcount()));
  return text;
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (!out) throw ConfigError(fmt::format("{} cannot be written: {}", path, std::strerror(errno)));
}

NicOutcome choose(const transport::Topology& topology, const Options& options,
                  std::optional<std::vector<transport::Family>> offered) {
  if (options.fabric.value == "shm") return {};
  const transport::RailRequest request{.fabric = options.fabric.value,
                                       .devices = options.devices,
                                       .gpu = std::nullopt,
                                       .offered = std::move(offered)};
  try {
    return {transport::choose_nics(topology, request), ""};
  } catch (const ConfigError& error) {
    return {std::nullopt, error.what()};
  }
}

int diagnose(const Options& options, std::ostream& out) {
  Report report{.fabric = options.fabric.value, .topology = {}, .nics = {}, .findings = {}};
  if (!options.topology.empty()) {
    report.topology = transport::parse_topology(read_file(options.topology), options.topology);
    report.nics = choose(report.topology, options, std::nullopt);
  } else {
    report.topology = transport::read_topology();
    if (!options.record.empty())
      write_file(options.record, transport::print_topology(report.topology));
    report.confined = transport::read_numa().confined;
    const Facts facts = read_facts();
    report.nics = choose(report.topology, options, offered_families(facts.fabric));
    report.findings =
        check_all(facts, report.topology, {options.fabric.value, options.memory}, report.nics);
  }
  out << (options.json ? print_json(report) : print_text(report));
  return report.nics.error.empty() && ready(report.findings) ? 0 : 1;
}

}  // namespace

int run_doctor(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  Options options;
  std::string memory;
  CLI::App app(
      "Shows what this machine has for moving bytes and which NICs a job would use, and checks "
      "what "
      "would stop or slow it.",
      "leeway-doctor");
  Knobs knobs;
  Bytes bytes;
  knobs.add("fabric", options.fabric, "");
  knobs.add("memory", bytes, "");
  std::string fabric = options.fabric.value;
  app.add_option("--fabric", fabric, "auto|efa|verbs|tcp|shm (default: auto)")->type_name("NAME");
  app.add_option("--device", options.devices, "use this NIC, interface or IP address; repeatable")
      ->type_name("NAME")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  auto* memory_option =
      app.add_option("--memory", memory, "check for this much registered memory a process: 40GiB")
          ->type_name("BYTES");
  auto* topology = app.add_option("--topology", options.topology,
                                  "show the choice for a recorded machine, not for this one")
                       ->type_name("FILE");
  app.add_option("--record", options.record, "write this machine's NICs, GPUs and distances")
      ->type_name("FILE")
      ->excludes(topology);
  app.add_flag("--json", options.json, "print JSON");
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // from the back
    value_or_throw(knobs.set("fabric", fabric, "flag --fabric"));
    if (memory_option->count() > 0) {
      value_or_throw(knobs.set("memory", memory, "flag --memory"));
      options.memory = bytes.value;
    }
    return diagnose(options, out);
  } catch (const CLI::CallForHelp&) {
    out << app.help();
    return 0;
  } catch (const CLI::ParseError& error) {
    err << "leeway-doctor: " << error.what() << "; see leeway-doctor --help\n";
  } catch (const ConfigError& error) {
    err << "leeway-doctor: " << error.what() << "\n";
  }
  return 2;
}

}  // namespace leeway::doctor
