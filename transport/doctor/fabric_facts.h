// What libfabric offers here, family by family. Called from main, from one thread.
#pragma once

#include "transport/doctor/facts.h"

namespace leeway::doctor {

FabricFacts read_fabric();

}  // namespace leeway::doctor
