// What the engine's source files share and nobody else needs.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "server/engine.h"

namespace leeway::server {

// Enough to keep a NIC busy with partitions of megabytes; more only lengthens each one.
inline constexpr std::size_t kTransfersInFlight = 16;

// One update of the whole shard, or the first publication (no contributions). Partitions start as
// soon as nothing reads their spare copy and no snapshot needs their content.
struct Engine::Update {
  Apply apply;
  bool initial = false;
  std::vector<LocalPartition> waiting;
  std::size_t unfinished = 0;
};

struct Engine::PullTransfer {
  WorkerId worker;
  transport::Pulled pulled;
  std::size_t unfinished = 0;
  std::string error;
};

}  // namespace leeway::server
