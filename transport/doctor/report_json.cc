#include <nlohmann/json.hpp>

#include "transport/doctor/report.h"

namespace leeway::doctor {
namespace {

using Json = nlohmann::ordered_json;

Json or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }
Json node(int number) { return number == transport::kNoNode ? Json(nullptr) : Json(number); }
Json rate(double gbps) { return gbps > 0 ? Json(gbps) : Json(nullptr); }

Json place(const transport::PciPlace& place) {
  return {{"pci", or_null(place.address)},
          {"numa_node", node(place.numa_node)},
          {"bridges", place.bridges}};
}

Json nic(const transport::Nic& nic) {
  Json ports = Json::array();
  for (const transport::Port& port : nic.ports)
    ports.push_back({{"number", port.number},
                     {"state", transport::to_string(port.state)},
                     {"link_layer", transport::to_string(port.link_layer)},
                     {"rate_gbps", rate(port.rate_gbps)},
                     {"netdev", or_null(port.netdev)},
                     {"addresses", port.addresses}});
  Json out = {{"name", nic.name},
              {"driver", transport::to_string(nic.driver)},
              {"attachment", transport::to_string(nic.attachment)}};
  out.update(place(nic.place));
  out["ports"] = std::move(ports);
  return out;
}

Json choice(const transport::NicChoice& choice) {
  Json rails = Json::array(), left_out = Json::array(), gpus = Json::array();
  for (const transport::RailPlan& rail : choice.rails)
    rails.push_back({{"device", rail.device},
                     {"domain", rail.domain},
                     {"address", or_null(rail.address)},
                     {"rate_gbps", rate(rail.rate_gbps)},
                     {"weight", rail.weight},
                     {"numa_node", node(rail.numa_node)}});
  for (const transport::LeftOut& left : choice.left_out)
    left_out.push_back({{"name", left.name}, {"reason", left.reason}});
  for (const transport::GpuRails& gpu : choice.gpus) {
    Json names = Json::array();
    for (const std::size_t i : gpu.rails) names.push_back(choice.rails[i].device);
    gpus.push_back({{"gpu", gpu.gpu},
                    {"distance", transport::to_string(gpu.distance)},
                    {"rails", std::move(names)}});
  }
  return {{"family", transport::to_string(choice.family)},
          {"rails", std::move(rails)},
          {"left_out", std::move(left_out)},
          {"gpus", std::move(gpus)}};
}

}  // namespace

std::string print_json(const Report& report) {
  Json nodes = Json::array(), nics = Json::array(), gpus = Json::array(), checks = Json::array();
  for (const transport::Nic& each : report.topology.nics) nics.push_back(nic(each));
  for (const transport::GpuInfo& gpu : report.topology.gpus) {
    Json out = {{"model", or_null(gpu.model)}};
    out.update(place(gpu.place));
    gpus.push_back(std::move(out));
  }
  for (const Finding& finding : report.findings)
    checks.push_back({{"name", finding.name},
                      {"level", to_string(finding.level)},
                      {"found", finding.found},
                      {"change", or_null(finding.change)}});
  for (const transport::NumaNode& node : report.topology.numa_nodes)
    nodes.push_back({{"number", node.number}, {"cpus", or_null(node.cpus)}});
  const transport::NumaPlan numa = servers_numa(report);
  const Json out = {
      {"numa_nodes", std::move(nodes)},
      {"nics", std::move(nics)},
      {"gpus", std::move(gpus)},
      {"fabric", report.fabric},
      {"choice", report.nics.choice ? choice(*report.nics.choice) : Json(nullptr)},
      {"choice_error", or_null(report.nics.error)},
      {"servers", {{"numa_nodes", numa.nodes}, {"cpus", or_null(numa.cpus)}, {"why", numa.why}}},
      {"checks", std::move(checks)},
      {"ready", report.nics.error.empty() && ready(report.findings)}};
  // Names come from the machine: bytes that are no UTF-8 must not end the program.
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace leeway::doctor
