// Recorded topologies: a Topology as text, so that the choice of NICs can be tried and tested for
// machines that are elsewhere (leeway-doctor --record, --topology).
//
// Pure functions of their arguments. What is wrong in a text throws ConfigError with file and line.
#pragma once

#include <string>
#include <string_view>

#include "transport/topology.h"

namespace leeway::transport {

// `file` is for messages.
Topology parse_topology(std::string_view text, const std::string& file);

// parse_topology() of it gives the same Topology.
std::string print_topology(const Topology& topology);

}  // namespace leeway::transport
