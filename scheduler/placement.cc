#include "scheduler/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <numeric>
#include <utility>

#include "common/tensor.h"

namespace leeway::scheduler {
namespace {

// A shard is updated in parallel and moved in a pipeline, both by partitions.
constexpr std::uint64_t kCutsPerShard = 16;
constexpr std::uint64_t kCutAlignment = 1024;
// A new server takes from each old one at least this part of a share, so that many servers do not
// make many crumbs.
constexpr std::uint64_t kLeastGift = 64;

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

// A range of a tensor, in elements.
struct Piece {
  std::uint32_t tensor = 0;
  std::uint64_t first = 0;
  std::uint64_t elements = 0;
  friend auto operator<=>(const Piece&, const Piece&) = default;
};

class Shards {
 public:
  // All on one server.
  explicit Shards(std::vector<Piece> pieces) : shards_{std::move(pieces)}, loads_(1) {
    for (const Piece& piece : shards_[0]) total_ += piece.elements;
    loads_[0] = total_;
  }

  // One server more, which takes from those that have most and otherwise moves nothing.
  void add_server() {
    const std::uint64_t share = total_ / (shards_.size() + 1);
    std::vector<std::size_t> donors(shards_.size());
    std::iota(donors.begin(), donors.end(), std::size_t{0});
    std::ranges::stable_sort(donors, std::ranges::greater(),
                             [&](std::size_t s) { return loads_[s]; });
    shards_.emplace_back();
    loads_.push_back(0);
    const std::uint64_t level = level_for(donors, share);
    for (const std::size_t donor : donors) {
      const std::uint64_t above = loads_[donor] - std::min(level, loads_[donor]);
      const std::uint64_t wanted = share - std::min(loads_.back(), share);
      give(donor, std::min(wanted, std::max(above, share / kLeastGift)));
    }
    std::ranges::sort(shards_.back());
  }

  const std::vector<std::vector<Piece>>& all() const { return shards_; }

 private:
  // What lies above it, of all, makes one share.
  std::uint64_t level_for(const std::vector<std::size_t>& descending, std::uint64_t share) const {
    std::uint64_t sum = 0;
    for (std::size_t n = 0; n < descending.size(); ++n) {
      sum += loads_[descending[n]];
      const std::uint64_t level = sum > share ? (sum - share) / (n + 1) : 0;
      if (n + 1 == descending.size() || level >= loads_[descending[n + 1]]) return level;
    }
    return 0;
  }

  // To the last server: whole pieces, spread over the model so that no time of a step belongs to
  // one server, then a part of the largest that is left.
  void give(std::size_t donor, std::uint64_t elements) {
    if (elements == 0) return;
    const double part = static_cast<double>(elements) / static_cast<double>(loads_[donor]);
    std::vector<Piece>& to = shards_.back();
    std::vector<Piece> stays;
    double due = 0;
    std::uint64_t left = elements;
    for (const Piece& piece : shards_[donor]) {
      const auto size = static_cast<double>(piece.elements);
      due += part * size;
      const bool goes = piece.elements <= left && due >= size / 2;
      (goes ? to : stays).push_back(piece);
      if (!goes) continue;
      due -= size;
      left -= piece.elements;
    }
    const auto largest = std::ranges::max_element(stays, {}, &Piece::elements);
    if (largest != stays.end() && largest->elements > left) {
      // What stays ends on the grid, whatever the piece's own end.
      const std::uint64_t kept = largest->elements - left;
      left =
          largest->elements -
          std::min((kept + kCutAlignment - 1) / kCutAlignment * kCutAlignment, largest->elements);
    } else {
      left = 0;
    }
    if (left > 0) {
      largest->elements -= left;
      to.push_back({largest->tensor, largest->first + largest->elements, left});
    }
    shards_[donor] = std::move(stays);
    std::uint64_t load = 0;
    for (const Piece& piece : shards_[donor]) load += piece.elements;
    loads_.back() += loads_[donor] - load;
    loads_[donor] = load;
  }

  std::vector<std::vector<Piece>> shards_;  // each in order
  std::vector<std::uint64_t> loads_;
  std::uint64_t total_ = 0;
};

tl::unexpected<Error> too_many(const rpc::TensorSpec& tensor, std::uint64_t cut) {
  return fail(Code::kResourceExhausted,
              fmt::format("tensor '{}' of shape {} makes more than {} partitions of {} elements; "
                          "raise partition_elements",
                          tensor.name.substr(0, 80), to_string(tensor.shape), kMaxPartitions, cut));
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
  std::vector<Piece> pieces;
  for (std::size_t t = 0; t < out.tensors.size(); ++t) {
    const std::uint64_t elements = elements_of(out.tensors[t]);
    total += elements;
    if (elements / partition_elements + pieces.size() >= kMaxPartitions)
      return too_many(out.tensors[t], partition_elements);
    for (std::uint64_t first = 0; first < elements; first += partition_elements)
      pieces.push_back(
          {static_cast<std::uint32_t>(t), first, std::min(partition_elements, elements - first)});
  }
  const std::uint64_t cut = cut_size(total, partition_elements, servers);
  Shards shards(std::move(pieces));
  for (std::uint32_t s = 1; s < servers; ++s) shards.add_server();
  for (std::uint32_t s = 0; s < servers; ++s)
    for (const Piece& piece : shards.all()[s]) {
      if (piece.elements / cut + out.partitions.size() >= kMaxPartitions)
        return too_many(out.tensors[piece.tensor], cut);
      for (std::uint64_t at = 0; at < piece.elements; at += cut) {
        rpc::Partition partition;
        partition.tensor = static_cast<std::int32_t>(piece.tensor);
        partition.first = static_cast<std::int64_t>(piece.first + at);
        partition.elements = static_cast<std::int64_t>(std::min(cut, piece.elements - at));
        partition.server = static_cast<std::int32_t>(s);
        out.partitions.push_back(partition);
      }
    }
  std::ranges::sort(out.partitions, {},
                    [](const rpc::Partition& p) { return std::pair(p.tensor, p.first); });
  for (std::size_t i = 0; i < out.partitions.size(); ++i)
    out.partitions[i].id = static_cast<std::int32_t>(i);
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
