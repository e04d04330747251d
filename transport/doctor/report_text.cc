#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "transport/doctor/report.h"

namespace leeway::doctor {
namespace {

using transport::GpuInfo;
using transport::Nic;
using transport::Port;
using transport::Topology;

using Row = std::vector<std::string>;

// Columns as wide as their widest cell; the last is not padded.
std::string table(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const Row& row : rows) {
    std::string line = "  ";
    for (std::size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], widths[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string node(int number) {
  return number == transport::kNoNode ? "" : fmt::format("node {}", number);
}

std::string rate(double gbps) { return gbps > 0 ? fmt::format("{} Gbit/s", gbps) : ""; }

std::string nics(const Topology& topology) {
  std::vector<Row> rows;
  for (const Nic& nic : topology.nics) {
    const Row head = {nic.name, std::string(transport::to_string(nic.driver)),
                      nic.place.address.empty() ? std::string(transport::to_string(nic.attachment))
                                                : nic.place.address,
                      node(nic.place.numa_node)};
    if (nic.ports.empty()) rows.push_back(head);
    for (const Port& port : nic.ports) {
      Row row = head;
      if (nic.ports.size() > 1) row[0] += fmt::format("/{}", port.number);
      row.insert(row.end(), {std::string(transport::to_string(port.state)),
                             std::string(transport::to_string(port.link_layer)),
                             rate(port.rate_gbps), port.netdev == nic.name ? "" : port.netdev,
                             fmt::format("{}", fmt::join(port.addresses, " "))});
      rows.push_back(std::move(row));
    }
  }
  return "NICs\n" + (rows.empty() ? "  none\n" : table(rows));
}

std::string gpus(const Topology& topology) {
  if (topology.gpus.empty()) return "";
  std::vector<Row> rows;
  for (const GpuInfo& gpu : topology.gpus)
    rows.push_back({gpu.place.address, gpu.model, node(gpu.place.numa_node)});
  return "\nGPUs\n" + table(rows);
}

std::string choice(const std::string& fabric, const NicOutcome& outcome) {
  std::string out = fmt::format("\nRails (fabric {}", fabric);
  if (!outcome.choice)
    return out + ")\n  none" + (outcome.error.empty() ? "" : ": " + outcome.error) + "\n";
  const transport::NicChoice& chosen = *outcome.choice;
  out += fmt::format(": {})\n", transport::to_string(chosen.family));
  std::vector<Row> rows;
  for (const transport::RailPlan& rail : chosen.rails)
    rows.push_back({rail.device, fmt::format("{:.3g} % of the bytes", 100 * rail.weight),
                    rate(rail.rate_gbps), node(rail.numa_node), rail.address});
  out += table(rows);
  if (!chosen.left_out.empty()) {
    rows.clear();
    for (const transport::LeftOut& left : chosen.left_out) rows.push_back({left.name, left.reason});
    out += "\nNot used\n" + table(rows);
  }
  if (!chosen.gpus.empty()) {
    rows.clear();
    for (const transport::GpuRails& gpu : chosen.gpus) {
      std::vector<std::string> names;
      for (const std::size_t i : gpu.rails) names.push_back(chosen.rails[i].device);
      rows.push_back({gpu.gpu, fmt::format("{}", fmt::join(names, " ")),
                      std::string(transport::to_string(gpu.distance))});
    }
    out += "\nRails of each GPU\n" + table(rows);
  }
  return out;
}

std::string findings(const std::vector<Finding>& all) {
  if (all.empty()) return "";
  std::vector<Row> rows;
  for (const Finding& finding : all) {
    rows.push_back({std::string(to_string(finding.level)), finding.name, finding.found});
    if (!finding.change.empty()) rows.push_back({"", "", "-> " + finding.change});
  }
  const auto count = [&](Level level) {
    return std::count_if(all.begin(), all.end(),
                         [&](const Finding& f) { return f.level == level; });
  };
  std::string verdict = "A job can run here.";
  if (!ready(all))
    verdict = fmt::format("A job cannot run here; problems: {}.", count(Level::kProblem));
  else if (count(Level::kWarning) > 0)
    verdict = fmt::format("A job can run here; warnings: {}.", count(Level::kWarning));
  return fmt::format("\nChecks\n{}\n{}\n", table(rows), verdict);
}

}  // namespace

transport::NumaPlan servers_numa(const Report& report) {
  std::vector<transport::NicInUse> nics;
  if (report.nics.choice)
    for (const transport::RailPlan& rail : report.nics.choice->rails)
      nics.push_back({rail.device, rail.numa_node, rail.rate_gbps});
  return transport::choose_numa(report.topology.numa_nodes, nics, report.confined);
}

std::string print_text(const Report& report) {
  return nics(report.topology) + gpus(report.topology) + choice(report.fabric, report.nics) +
         fmt::format("\nServers\n  {}\n", transport::describe(servers_numa(report))) +
         findings(report.findings);
}

}  // namespace leeway::doctor
