// The recorded machines of tests/unit/transport/topologies. Called from one thread.
#pragma once

#include <doctest/doctest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "transport/topology_file.h"

namespace leeway::transport {

inline std::string recorded_text(const std::string& name) {
  std::ifstream in(std::string(LEEWAY_TOPOLOGIES) + "/" + name + ".topology");
  std::stringstream text;
  text << in.rdbuf();
  REQUIRE(in);
  return text.str();
}

inline Topology recorded(const std::string& name) {
  return parse_topology(recorded_text(name), name);
}

}  // namespace leeway::transport
