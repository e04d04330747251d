// Where the model lies: tensors in name order, cut into partitions, the partitions spread over the
// servers by size. A pure function of its arguments: every run places the same model the same way.
//
// With n servers it is what it was with n - 1, but for what the last one takes: about a share, from
// those that have most. It takes every so-manyth piece of `partition_elements`, so that at any time
// of a step all servers have work, and cuts one to measure, at a multiple of 1024 elements, so
// shards differ by a few percent at most even if one tensor is most of the model. Where a shard
// would not have about sixteen partitions its pieces are cut smaller.
#pragma once

#include <cstdint>
#include <vector>

#include "common/result.h"
#include "scheduler_types.h"  // generated

namespace leeway::scheduler {

constexpr std::size_t kMaxTensors = 1 << 18;
constexpr std::size_t kMaxPartitions = 1 << 20;
constexpr std::size_t kMaxNameBytes = 512;
constexpr std::size_t kMaxDimensions = 32;

struct Placement {
  std::vector<rpc::TensorSpec> tensors;    // in name order
  std::vector<rpc::Partition> partitions;  // in tensor order, then by first element; id = index
};

// Refuses, naming the tensor: two of one name, a name that is empty, overlong or not printable, a
// negative or overflowing shape. On success the tensors are in name order.
Result<std::vector<rpc::TensorSpec>> check_model(std::vector<rpc::TensorSpec> tensors);

// `tensors` as check_model gave them. kResourceExhausted when there would be too many partitions.
Result<Placement> place(std::vector<rpc::TensorSpec> tensors, std::uint64_t partition_elements,
                        std::uint32_t servers);

// Elements of each server's shard.
std::vector<std::uint64_t> shard_sizes(const std::vector<rpc::Partition>& partitions,
                                       std::uint32_t servers);

}  // namespace leeway::scheduler
