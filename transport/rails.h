// The rails that an endpoint's options ask for. Called while starting.
#pragma once

#include <memory>
#include <vector>

#include "transport/endpoint.h"
#include "transport/rail.h"

namespace leeway::transport {

// Throws ConfigError, one line: what is missing and what to do. A fabric that is named and is not
// there is never replaced by another.
std::vector<std::unique_ptr<Rail>> open_rails(const EndpointOptions& options);

}  // namespace leeway::transport
