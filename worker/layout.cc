#include "worker/layout.h"

#include <fmt/format.h>

#include <map>

#include "scheduler_types.h"

namespace leeway::worker {
namespace {

// Tensors start on cache lines, in FP16 too.
constexpr std::size_t kAlignElements = 32;

}  // namespace

Result<Layout> Layout::make(const rpc::Plan& plan, const std::vector<Declared>& declared,
                            std::size_t servers) {
  const auto broken = [](std::string what) {
    return fail(Code::kDataLoss, "the scheduler's plan does not hold together: " + std::move(what));
  };
  Layout layout;
  std::map<std::string, std::size_t> by_name;
  for (std::size_t i = 0; i < declared.size(); ++i) {
    by_name.emplace(declared[i].name, i);
    layout.tensors_.push_back({.begin = layout.elements_, .elements = declared[i].elements});
    layout.elements_ +=
        (declared[i].elements + kAlignElements - 1) / kAlignElements * kAlignElements;
  }

  if (plan.tensors.size() != declared.size())
    return fail(Code::kRefused, fmt::format("the job's model has {} tensors, this program's has {}",
                                            plan.tensors.size(), declared.size()));
  std::vector<std::size_t> parameter_of;  // by tensor of the plan
  for (const rpc::TensorSpec& tensor : plan.tensors) {
    const auto it = by_name.find(tensor.name);
    if (it == by_name.end())
      return fail(Code::kRefused,
                  fmt::format("the job's model has a tensor {} that this program did not declare",
                              tensor.name));
    if (tensor.shape != declared[it->second].shape)
      return fail(
          Code::kRefused,
          fmt::format("tensor {} is {} in the job's model and {} in this program", tensor.name,
                      to_string(tensor.shape), to_string(declared[it->second].shape)));
    parameter_of.push_back(it->second);
  }

  layout.shards_.resize(servers);
  std::vector<std::size_t> covered(declared.size());
  for (std::size_t i = 0; i < plan.partitions.size(); ++i) {
    const rpc::Partition& p = plan.partitions[i];
    if (p.id != static_cast<std::int64_t>(i))
      return broken(fmt::format("partition {} is {}", i, p.id));
    if (p.tensor < 0 || static_cast<std::size_t>(p.tensor) >= parameter_of.size() || p.server < 0 ||
        static_cast<std::size_t>(p.server) >= servers)
      return broken(fmt::format("partition {} lies nowhere", i));
    const std::size_t parameter = parameter_of[static_cast<std::size_t>(p.tensor)];
    Tensor& tensor = layout.tensors_[parameter];
    if (p.first < 0 || p.elements < 0 || static_cast<std::size_t>(p.first) != covered[parameter] ||
        static_cast<std::size_t>(p.elements) > tensor.elements - covered[parameter])
      return broken(
          fmt::format("partition {} leaves a gap in {} or overlaps", i, declared[parameter].name));
    const ServerId server(static_cast<std::uint32_t>(p.server));
    const PartitionId id(static_cast<std::uint32_t>(i));
    layout.parts_.push_back({.begin = tensor.begin + covered[parameter],
                             .elements = static_cast<std::size_t>(p.elements),
                             .server = server});
    covered[parameter] += static_cast<std::size_t>(p.elements);
    if (p.elements == 0) continue;
    tensor.partitions.push_back(id);
    layout.shards_[server.value()].push_back(id);
  }
  for (std::size_t i = 0; i < declared.size(); ++i)
    if (covered[i] != declared[i].elements)
      return broken(fmt::format("{} of {} elements of {} lie nowhere",
                                declared[i].elements - covered[i], declared[i].elements,
                                declared[i].name));
  return layout;
}

}  // namespace leeway::worker
