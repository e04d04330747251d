// Where the model lies: tensors in name order, cut into partitions, the partitions spread over the
// servers by size. A pure function of its arguments: every run places the same model the same way.
//
// A partition has at most `partition_elements` elements, and fewer where that is what it takes to
// spread the model evenly: a server's share is cut into about sixteen, in multiples of 1024
// elements, so that a shard is within some percent of the mean even if one tensor is most of the
// model.
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
