// Which partitions of a server travel and are updated as one: a model's many small tensors would
// else cost a transfer, a message entry and a task each.
//
// A bundle is one partition, or several whole small tensors of one server that follow each other in
// the order of ids, all with or all without weight decay. In it every tensor starts on a cache
// line, in FP16 too; what lies between them is zero and stays zero, in gradients, weights and state
// alike. It has the id of its first partition. Servers and workers make the same bundles from the
// same plan, so on the wire, and wherever bytes move, a partition is a bundle. Placement and
// checkpoints know partitions alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/ids.h"

namespace leeway::transport {

// A partition as the plan has it.
struct BundlePiece {
  PartitionId id;
  std::uint64_t elements = 0;
  bool whole_tensor = false;
  bool decays = false;
};

struct Bundle {
  struct Member {
    std::size_t piece = 0;     // index into the pieces
    std::uint64_t offset = 0;  // in elements of the bundle
  };
  PartitionId id;
  std::uint64_t elements = 0;  // from the first member to the end of the last
  std::vector<Member> members;
  bool decays = false;
};

// `pieces` are those of one server, ids ascending. Bundles come in the order of their ids.
std::vector<Bundle> make_bundles(std::span<const BundlePiece> pieces);

}  // namespace leeway::transport
