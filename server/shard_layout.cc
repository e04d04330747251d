#include "server/shard_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace leeway::server {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kLine = 64;
constexpr std::size_t kStagger = 5 * kLine;  // twelve kinds fit a page
constexpr std::size_t kLarge = std::size_t{64} << 10;
// Slabs in flight per worker when nothing bounds them: more only hold steps that wait anyway.
constexpr std::uint64_t kUnlimitedDepth = 8;

std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

auto each(std::size_t element_bytes) {
  return [element_bytes](std::uint64_t elements) { return elements * element_bytes; };
}

std::string print_bytes(std::uint64_t bytes) {
  if (bytes >= 1ull << 30)
    return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1ull << 30));
  if (bytes >= 1ull << 20)
    return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1ull << 20));
  return fmt::format("{:.1f} KiB", static_cast<double>(bytes) / 1024);
}

}  // namespace

template <typename BytesOf>
ShardLayout::Offsets ShardLayout::lay(std::size_t& end, std::size_t kind, BytesOf bytes_of) const {
  Offsets offsets;
  offsets.reserve(shape_.elements.size());
  for (const std::uint64_t elements : shape_.elements) {
    const std::size_t bytes = bytes_of(elements);
    const std::size_t start = elements * sizeof(float) >= kLarge
                                  ? round_up(end, kPage) + kind % 12 * kStagger
                                  : round_up(end, kLine);
    offsets.push_back(start);
    end = start + bytes;
  }
  return offsets;
}

ShardLayout::ShardLayout(ShardShape shape, std::uint32_t slabs) : shape_(std::move(shape)) {
  std::size_t kind = 0;
  masters_ = lay(sizes_[0], kind++, each(4));
  for (int i = 0; i < shape_.state_arrays + (shape_.late_sum ? 1 : 0); ++i)
    state_.push_back(lay(sizes_[1], kind++, each(4)));
  for (int i = 0; i < 2; ++i)
    published_.push_back(lay(sizes_[2], kind++, each(size_of(shape_.pull_dtype))));
  for (std::uint32_t i = 0; i < slabs; ++i)
    slabs_.push_back(lay(sizes_[3], kind + i % (12 - kind),
                         [&](std::uint64_t n) { return shape_.codec.bytes(n); }));
  for (std::uint32_t i = 0; i < shape_.remembered; ++i)
    then_.push_back(lay(sizes_[4], 11 - i % (12 - kind), each(size_of(shape_.pull_dtype))));
}

std::uint64_t ShardLayout::total_elements() const {
  return std::accumulate(shape_.elements.begin(), shape_.elements.end(), std::uint64_t{0});
}

std::string ShardLayout::sum() const {
  const std::string kept = shape_.remembered == 0
                               ? std::string()
                               : fmt::format(" + weights of {} workers for delay_compensation {}",
                                             shape_.remembered, print_bytes(then_bytes()));
  return fmt::format(
      "masters {} + optimizer state {}{} + two published copies {} + {} gradient slabs {}{} = {}",
      print_bytes(master_bytes()), print_bytes(state_bytes()),
      shape_.late_sum ? " (with the sum of late steps)" : "", print_bytes(published_bytes()),
      slabs(), print_bytes(slab_bytes()), kept, print_bytes(total_bytes()));
}

std::uint32_t SlabRule::minimum() const {
  return per_clock || servers > 1 ? std::max(1u, workers) : 1;
}

std::uint64_t SlabRule::useful() const {
  if (!per_clock) return std::max<std::uint64_t>(std::uint64_t{2} * workers, minimum());
  std::uint64_t depth = staleness.infinite() ? kUnlimitedDepth : staleness.value + 1;
  if (memory_limit == 0) depth = std::min(depth, kUnlimitedDepth);
  return std::min<std::uint64_t>(workers * std::min<std::uint64_t>(depth, 1u << 16), 1u << 16);
}

Result<ShardLayout> lay_out(const ShardShape& shape, const SlabRule& rule) {
  if (rule.memory_limit == 0) return ShardLayout(shape, static_cast<std::uint32_t>(rule.useful()));
  const ShardLayout least(shape, rule.minimum());
  if (least.total_bytes() > rule.memory_limit)
    return fail(
        Code::kResourceExhausted,
        fmt::format("server_memory_limit {} is too small: {}; raise the limit or add servers",
                    print_bytes(rule.memory_limit), least.sum()));
  std::uint64_t low = rule.minimum(), high = std::max<std::uint64_t>(rule.useful(), low);
  while (low < high) {  // the largest number of slabs that fits
    const std::uint64_t middle = low + (high - low + 1) / 2;
    if (ShardLayout(shape, static_cast<std::uint32_t>(middle)).total_bytes() <= rule.memory_limit)
      low = middle;
    else
      high = middle - 1;
  }
  return ShardLayout(shape, static_cast<std::uint32_t>(low));
}

}  // namespace leeway::server
