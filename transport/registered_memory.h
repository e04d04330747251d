// The inside of RegisteredMemory. Included by this folder's .cc files only.
#pragma once

#include <memory>

#include "transport/endpoint.h"
#include "transport/region.h"

namespace leeway::transport {

struct RegisteredMemory::Impl {
  std::shared_ptr<Region> region;
};

}  // namespace leeway::transport
