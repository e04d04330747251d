#include "worker/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "scheduler_types.h"
#include "transport/bundle.h"

namespace leeway::worker {
namespace {

// Tensors start on cache lines, in FP16 too.
constexpr std::size_t kAlignElements = 32;

}  // namespace

// Reads the plan step by step; each step says what is wrong with it.
class Layout::Maker {
 public:
  Maker(const rpc::Plan& plan, const std::vector<Declared>& declared, std::size_t servers,
        const JobSettings& settings)
      : plan_(plan), declared_(declared), settings_(settings), pieces_(servers) {}

  Result<Layout> make() {
    if (auto status = match_tensors(); !status) return tl::unexpected(status.error());
    if (auto status = read_partitions(); !status) return tl::unexpected(status.error());
    place();
    return std::move(layout_);
  }

 private:
  static tl::unexpected<Error> broken(std::string what) {
    return fail(Code::kDataLoss, "the scheduler's plan does not hold together: " + std::move(what));
  }

  Status match_tensors();
  Status read_partitions();
  void place();
  std::size_t take(std::size_t elements);

  const rpc::Plan& plan_;
  const std::vector<Declared>& declared_;
  const JobSettings& settings_;
  Layout layout_;
  std::vector<std::size_t> parameters_;                      // by tensor of the plan
  std::vector<std::vector<transport::BundlePiece>> pieces_;  // by server
};

Status Layout::Maker::match_tensors() {
  std::map<std::string, std::size_t> by_name;
  for (std::size_t i = 0; i < declared_.size(); ++i) by_name.emplace(declared_[i].name, i);
  if (plan_.tensors.size() != declared_.size())
    return fail(Code::kRefused, fmt::format("the job's model has {} tensors, this program's has {}",
                                            plan_.tensors.size(), declared_.size()));
  for (const rpc::TensorSpec& tensor : plan_.tensors) {
    const auto it = by_name.find(tensor.name);
    if (it == by_name.end())
      return fail(Code::kRefused,
                  fmt::format("the job's model has a tensor {} that this program did not declare",
                              tensor.name));
    if (tensor.shape != declared_[it->second].shape)
      return fail(
          Code::kRefused,
          fmt::format("tensor {} is {} in the job's model and {} in this program", tensor.name,
                      to_string(tensor.shape), to_string(declared_[it->second].shape)));
    parameters_.push_back(it->second);
  }
  return {};
}

Status Layout::Maker::read_partitions() {
  std::vector<std::size_t> covered(declared_.size());
  for (std::size_t i = 0; i < plan_.partitions.size(); ++i) {
    const rpc::Partition& p = plan_.partitions[i];
    if (p.id != static_cast<std::int64_t>(i))
      return broken(fmt::format("partition {} is {}", i, p.id));
    if (p.tensor < 0 || static_cast<std::size_t>(p.tensor) >= parameters_.size() || p.server < 0 ||
        static_cast<std::size_t>(p.server) >= pieces_.size())
      return broken(fmt::format("partition {} lies nowhere", i));
    const std::size_t parameter = parameters_[static_cast<std::size_t>(p.tensor)];
    const Declared& declared = declared_[parameter];
    if (p.first < 0 || p.elements < 0 || static_cast<std::size_t>(p.first) != covered[parameter] ||
        static_cast<std::size_t>(p.elements) > declared.elements - covered[parameter])
      return broken(fmt::format("partition {} leaves a gap in {} or overlaps", i, declared.name));
    const auto elements = static_cast<std::size_t>(p.elements);
    covered[parameter] += elements;
    pieces_[static_cast<std::size_t>(p.server)].push_back(
        {.id = PartitionId(static_cast<std::uint32_t>(i)),
         .elements = elements,
         .whole_tensor = elements == declared.elements,
         .decays = settings_.decays(declared.name)});
  }
  for (std::size_t i = 0; i < declared_.size(); ++i)
    if (covered[i] != declared_[i].elements)
      return broken(fmt::format("{} of {} elements of {} lie nowhere",
                                declared_[i].elements - covered[i], declared_[i].elements,
                                declared_[i].name));
  return {};
}

std::size_t Layout::Maker::take(std::size_t elements) {
  const std::size_t begin = layout_.elements_;
  layout_.elements_ += (elements + kAlignElements - 1) / kAlignElements * kAlignElements;
  return begin;
}

// In order of declaration; a bundle lies where the first of its tensors would.
void Layout::Maker::place() {
  struct Place {
    PartitionId bundle;
    std::uint64_t offset = 0;
  };
  std::vector<Place> places(plan_.partitions.size());  // by partition
  layout_.parts_.resize(plan_.partitions.size());
  for (std::size_t server = 0; server < pieces_.size(); ++server)
    for (const transport::Bundle& bundle : transport::make_bundles(pieces_[server])) {
      Part& part = layout_.parts_[bundle.id.value()];
      part.elements = bundle.elements;
      part.server = ServerId(static_cast<std::uint32_t>(server));
      for (const transport::Bundle::Member& member : bundle.members) {
        const transport::BundlePiece& piece = pieces_[server][member.piece];
        places[piece.id.value()] = {bundle.id, member.offset};
        part.tensors += piece.elements > 0 ? 1 : 0;
      }
    }

  std::vector<std::vector<std::size_t>> partitions(declared_.size());  // by parameter, in order
  for (std::size_t i = 0; i < plan_.partitions.size(); ++i)
    if (plan_.partitions[i].elements > 0)
      partitions[parameters_[static_cast<std::size_t>(plan_.partitions[i].tensor)]].push_back(i);
  layout_.shards_.resize(pieces_.size());
  std::vector<bool> placed(plan_.partitions.size());
  for (std::size_t i = 0; i < declared_.size(); ++i) {
    Tensor& tensor = layout_.tensors_.emplace_back(Tensor{.elements = declared_[i].elements});
    // A tensor in several partitions lies in one piece.
    const bool whole = partitions[i].size() != 1;
    if (whole) tensor.begin = take(tensor.elements);
    std::size_t before = 0;
    for (const std::size_t p : partitions[i]) {
      const PartitionId id = places[p].bundle;
      Part& part = layout_.parts_[id.value()];
      if (!placed[id.value()]) {
        placed[id.value()] = true;
        part.begin = whole ? tensor.begin + before : take(part.elements);
        layout_.shards_[part.server.value()].push_back(id);
      }
      if (!whole) tensor.begin = part.begin + places[p].offset;
      before += static_cast<std::size_t>(plan_.partitions[p].elements);
      tensor.parts.push_back(id);
    }
  }
}

Result<Layout> Layout::make(const rpc::Plan& plan, const std::vector<Declared>& declared,
                            std::size_t servers, const JobSettings& settings) {
  return Maker(plan, declared, servers, settings).make();
}

Stretch shared_by(const Layout::Part& part, const Layout::Tensor& tensor) noexcept {
  return {std::max(part.begin, tensor.begin),
          std::min(part.begin + part.elements, tensor.begin + tensor.elements)};
}

std::vector<Place> payload_places(const Layout& layout, const GradientCodec& codec) {
  std::vector<Place> places;
  std::size_t end = 0;
  for (const Layout::Part& part : layout.parts()) {
    places.push_back({end, codec.bytes(part.elements)});
    end = places.back().end();
  }
  return places;
}

}  // namespace leeway::worker
