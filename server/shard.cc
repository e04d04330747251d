#include "server/shard.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/result.h"
#include "kernels/cast.h"
#include "kernels/codec.h"
#include "kernels/lamb.h"

namespace leeway::server {

Shard::Shard(const ShardLayout& layout, ShardBlocks blocks)
    : layout_(layout),
      blocks_(blocks),
      entries_(layout.shape().elements.size()),
      elsewhere_(layout.slabs() * entries_.size()) {
  LEEWAY_CHECK(blocks_.masters.size() >= layout.master_bytes());
  LEEWAY_CHECK(blocks_.state.size() >= layout.state_bytes());
  LEEWAY_CHECK(blocks_.published.size() >= layout.published_bytes());
  LEEWAY_CHECK(blocks_.slabs.size() >= layout.slab_bytes());
  LEEWAY_CHECK(blocks_.then.size() >= layout.then_bytes());
}

Shard::Reading Shard::begin_read(LocalPartition p) {
  Entry& entry = entries_[p];
  ++entry.readers[entry.current];
  return {entry.current, layout_.published(p, entry.current), entry.version};
}

void Shard::end_read(LocalPartition p, int copy) {
  LEEWAY_CHECK(entries_[p].readers[copy] > 0);
  --entries_[p].readers[copy];
}

void Shard::remember(LocalPartition p, int copy, WorkerId worker) {
  const ShardLayout::Place from = layout_.published(p, copy);
  std::memcpy(blocks_.then.data() + layout_.then(p, worker.value()).offset,
              blocks_.published.data() + from.offset, from.bytes);
}

bool Shard::may_update(LocalPartition p) const {
  const Entry& entry = entries_[p];
  return !entry.updating && entry.readers[1 - entry.current] == 0;
}

void Shard::begin_update(LocalPartition p) {
  LEEWAY_CHECK(may_update(p));
  entries_[p].updating = true;
}

void Shard::end_update(LocalPartition p, std::uint64_t updates) {
  Entry& entry = entries_[p];
  LEEWAY_CHECK(entry.updating);
  entry.updating = false;
  entry.current = 1 - entry.current;
  entry.version = Version(entry.version.value() + updates);
}

std::span<float> Shard::master(LocalPartition p) const {
  return {reinterpret_cast<float*>(blocks_.masters.data() + layout_.master(p).offset), elements(p)};
}

std::span<float> Shard::state(LocalPartition p, int array) const {
  return {reinterpret_cast<float*>(blocks_.state.data() + layout_.state(p, array).offset),
          elements(p)};
}

std::byte* Shard::spare(LocalPartition p) const {
  return blocks_.published.data() + layout_.published(p, 1 - entries_[p].current).offset;
}

const std::byte* Shard::then(LocalPartition p, WorkerId worker) const {
  if (layout_.shape().remembered == 0) return nullptr;
  return blocks_.then.data() + layout_.then(p, worker.value()).offset;
}

void Shard::read_from(LocalPartition p, std::uint32_t slab, const std::byte* elsewhere) {
  elsewhere_[slab * entries_.size() + p] = elsewhere;
}

std::span<const std::byte> Shard::payload(LocalPartition p, std::uint32_t slab) const {
  const std::byte* const elsewhere = elsewhere_[slab * entries_.size() + p];
  const auto place = layout_.slab(p, slab);
  return {elsewhere != nullptr ? elsewhere : blocks_.slabs.data() + place.offset, place.bytes};
}

void Shard::publish_partition(LocalPartition p) {
  kernels::convert(master(p), layout_.shape().pull_dtype, spare(p));
}

std::byte* Shard::late_sum(LocalPartition p) const {
  return blocks_.state.data() + layout_.late_sum(p).offset;
}

kernels::Gradient Shard::gradient(LocalPartition p, const Contribution& contribution) const {
  kernels::Gradient gradient =
      kernels::read_gradient(layout_.shape().codec, payload(p, contribution.slab).data(),
                             elements(p), contribution.factor / contribution.scales[p]);
  gradient.then = then(p, contribution.step.worker);
  return gradient;
}

void Shard::fold_late(LocalPartition p, const FoldLate& fold) {
  if (elements(p) == 0) return;
  std::vector<kernels::Gradient> gradients;
  for (const Contribution& contribution : fold.contributions)
    gradients.push_back(gradient(p, contribution));
  std::byte* sum = late_sum(p);
  if (fold.first) std::fill_n(sum, elements(p) * sizeof(float), std::byte{0});
  // Adding is a step of -1.
  const kernels::UpdateArgs add{
      .gradients = gradients, .elements = elements(p), .master = reinterpret_cast<float*>(sum)};
  kernels::update(kernels::Optimizer::kSgd, {.learning_rate = -1.0f}, {&add, 1});
}

Shard::Prepared Shard::prepare(LocalPartition p, std::span<const Sum> sums) const {
  Prepared prepared;
  std::vector<kernels::Gradient>& gradients = prepared.gradients;
  std::vector<std::size_t> counts;
  for (const Sum& sum : sums) {
    const std::size_t before = gradients.size();
    if (sum.late != 0)
      gradients.push_back({.data = late_sum(p), .codec = Codec::kF32, .inverse_scale = sum.late});
    for (const Contribution& contribution : sum.contributions)
      gradients.push_back(gradient(p, contribution));
    counts.push_back(gradients.size() - before);
  }
  std::vector<kernels::UpdateArgs>& updates = prepared.updates;
  std::span<const kernels::Gradient> left = gradients;
  for (const Sum& sum : sums) {
    kernels::UpdateArgs args{.gradients = left.first(counts[updates.size()]),
                             .weight = sum.weight,
                             .rate = sum.rate,
                             .decays = layout_.decays(p),
                             .elements = elements(p),
                             .master = master(p).data(),
                             .publish = spare(p),
                             .publish_dtype = layout_.shape().pull_dtype,
                             // Version 1 is the initial values: the first update makes version 2.
                             .step = entries_[p].version.value() + updates.size()};
    for (int i = 0; i < state_arrays(); ++i) args.state[i] = state(p, i).data();
    left = left.subspan(args.gradients.size());
    updates.push_back(args);
  }
  return prepared;
}

void Shard::update_partition(LocalPartition p, kernels::Optimizer optimizer,
                             const kernels::Hyper& hyper, std::span<const Sum> sums) {
  if (elements(p) == 0) return;
  const Prepared prepared = prepare(p, sums);
  if (optimizer != kernels::Optimizer::kLamb || !layout_.decays(p))
    return kernels::update(optimizer, hyper, prepared.updates);
  for (const kernels::UpdateArgs& args : prepared.updates)
    for (const ShardShape::Range& tensor : layout_.shape().tensors[p])
      kernels::lamb_step(hyper, args, tensor.begin, tensor.end,
                         kernels::lamb_moments(hyper, args, tensor.begin, tensor.end));
}

NormSums Shard::sum_part(LocalPartition p, const kernels::Hyper& hyper, const Sum& sum) {
  return kernels::lamb_moments(hyper, prepare(p, {&sum, 1}).updates[0], 0, elements(p));
}

void Shard::step_part(LocalPartition p, const kernels::Hyper& hyper, const Sum& sum,
                      const NormSums& tensor) {
  kernels::lamb_step(hyper, prepare(p, {&sum, 1}).updates[0], 0, elements(p), tensor);
}

}  // namespace leeway::server
