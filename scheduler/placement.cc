#include "scheduler/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <queue>

#include "common/tensor.h"

namespace leeway::scheduler {
namespace {

constexpr std::uint64_t kCutsPerShard = 16;
constexpr std::uint64_t kCutAlignment = 1024;

Error bad_tensor(std::string_view name, std::string_view why) {
  return {Code::kInvalidArgument, fmt::format("tensor '{}' {}", name.substr(0, 80), why)};
}

bool printable(std::string_view name) {
  return std::none_of(name.begin(), name.end(),
                      [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

std::uint64_t elements_of(const rpc::TensorSpec& tensor) { return *element_count(tensor.shape); }

std::uint64_t cut_size(std::uint64_t total, std::uint64_t partition_elements,
                       std::uint32_t servers) {
  const std::uint64_t even = total / (servers * kCutsPerShard) + 1;
  const std::uint64_t aligned = (even + kCutAlignment - 1) / kCutAlignment * kCutAlignment;
  return std::min(partition_elements, aligned);
}

// The largest first, each to the server that has least.
void spread(std::vector<rpc::Partition>& partitions, std::uint32_t servers) {
  std::vector<std::size_t> order(partitions.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return partitions[a].elements > partitions[b].elements;
  });
  using Load = std::pair<std::uint64_t, std::uint32_t>;  // elements, server
  std::priority_queue<Load, std::vector<Load>, std::greater<>> least;
  for (std::uint32_t server = 0; server < servers; ++server) least.emplace(0, server);
  for (const std::size_t index : order) {
    auto [load, server] = least.top();
    least.pop();
    partitions[index].server = static_cast<std::int32_t>(server);
    least.emplace(load + static_cast<std::uint64_t>(partitions[index].elements), server);
  }
}

}  // namespace

Result<std::vector<rpc::TensorSpec>> check_model(std::vector<rpc::TensorSpec> tensors) {
  if (tensors.size() > kMaxTensors)
    return fail(Code::kInvalidArgument, fmt::format("the model has {} tensors; {} is the most",
                                                    tensors.size(), kMaxTensors));
  std::uint64_t total = 0;
  for (const rpc::TensorSpec& tensor : tensors) {
    if (tensor.name.empty())
      return fail(Code::kInvalidArgument,
                  fmt::format("a tensor of shape {} has no name", to_string(tensor.shape)));
    if (tensor.name.size() > kMaxNameBytes)
      return tl::unexpected(
          bad_tensor(tensor.name, fmt::format("has a name of {} bytes; {} is the most",
                                              tensor.name.size(), kMaxNameBytes)));
    if (!printable(tensor.name))
      return fail(Code::kInvalidArgument, "a tensor's name has a control character in it");
    if (tensor.shape.size() > kMaxDimensions)
      return tl::unexpected(bad_tensor(
          tensor.name,
          fmt::format("has {} dimensions; {} is the most", tensor.shape.size(), kMaxDimensions)));
    const auto count = element_count(tensor.shape);
    if (!count || __builtin_add_overflow(total, *count, &total) || total > INT64_MAX)
      return tl::unexpected(bad_tensor(
          tensor.name,
          fmt::format("has a shape that is negative or too large: {}", to_string(tensor.shape))));
  }
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  const auto twin =
      std::adjacent_find(tensors.begin(), tensors.end(),
                         [](const auto& a, const auto& b) { return a.name == b.name; });
  if (twin != tensors.end())
    return tl::unexpected(bad_tensor(twin->name, "is declared twice; give each a name of its own"));
  return tensors;
}

Result<Placement> place(std::vector<rpc::TensorSpec> tensors, std::uint64_t partition_elements,
                        std::uint32_t servers) {
  Placement out{std::move(tensors), {}};
  std::uint64_t total = 0;
  for (const rpc::TensorSpec& tensor : out.tensors) total += elements_of(tensor);
  const std::uint64_t cut = cut_size(total, partition_elements, servers);
  for (std::size_t t = 0; t < out.tensors.size(); ++t) {
    const std::uint64_t elements = elements_of(out.tensors[t]);
    if (elements / cut + out.partitions.size() >= kMaxPartitions)
      return fail(
          Code::kResourceExhausted,
          fmt::format("tensor '{}' of shape {} makes more than {} partitions of {} elements; "
                      "raise partition_elements",
                      out.tensors[t].name.substr(0, 80), to_string(out.tensors[t].shape),
                      kMaxPartitions, cut));
    for (std::uint64_t first = 0; first < elements; first += cut) {
      rpc::Partition partition;
      partition.id = static_cast<std::int32_t>(out.partitions.size());
      partition.tensor = static_cast<std::int32_t>(t);
      partition.first = static_cast<std::int64_t>(first);
      partition.elements = static_cast<std::int64_t>(std::min(cut, elements - first));
      out.partitions.push_back(partition);
    }
  }
  spread(out.partitions, servers);
  return out;
}

std::vector<std::uint64_t> shard_sizes(const std::vector<rpc::Partition>& partitions,
                                       std::uint32_t servers) {
  std::vector<std::uint64_t> sizes(servers);
  for (const rpc::Partition& partition : partitions)
    sizes[static_cast<std::size_t>(partition.server)] +=
        static_cast<std::uint64_t>(partition.elements);
  return sizes;
}

}  // namespace leeway::scheduler
