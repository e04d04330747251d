// The partitions of one server: masters, optimizer state and published copies in memory that
// somebody else owns, and who may touch which when.
//
// Copy-on-write: each partition has two published copies. Pulls read the current one; an update
// writes the spare, which then becomes current. An update whose spare is still being read waits.
//
// Called from one thread (the endpoint's) except update_partition() and publish_partition(), which
// run on any thread between begin_update() and end_update() of that partition, and remember().
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/ids.h"
#include "kernels/optimizer.h"
#include "server/effects.h"
#include "server/shard_layout.h"

namespace leeway::server {

// The blocks of ShardLayout, all of at least the sizes it asks for; they outlive the Shard.
struct ShardBlocks {
  std::span<std::byte> masters, state, published, slabs, then;
};

class Shard {
 public:
  Shard(const ShardLayout& layout, ShardBlocks blocks);

  std::size_t partitions() const noexcept { return entries_.size(); }
  std::uint64_t elements(LocalPartition p) const { return layout_.shape().elements[p]; }
  Version version(LocalPartition p) const { return entries_[p].version; }

  // A pull reads the current copy until end_read().
  struct Reading {
    int copy = 0;
    ShardLayout::Place place;  // in the published block
    Version version;
  };
  Reading begin_read(LocalPartition p);
  void end_read(LocalPartition p, int copy);
  // [between begin_read and end_read, any thread] These are the weights that the worker's next
  // gradient is computed on. Not while an update has a gradient of that worker's.
  void remember(LocalPartition p, int copy, WorkerId worker);

  bool may_update(LocalPartition p) const;  // no transfer reads the spare
  void begin_update(LocalPartition p);
  // Makes the spare current; the version grows by the updates that are in it now.
  void end_update(LocalPartition p, std::uint64_t updates = 1);
  // Where an update finds this partition's gradient of that slab: in the slab, or, when not null,
  // at `elsewhere`. Not while an update that has it runs.
  void read_from(LocalPartition p, std::uint32_t slab, const std::byte* elsewhere);
  // There, as long as the codec says.
  std::span<const std::byte> payload(LocalPartition p, std::uint32_t slab) const;
  // Both copies are taken to hold this version (restored).
  void set_version(LocalPartition p, Version version) { entries_[p].version = version; }

  // [between begin_update and end_update] One fused pass: gradients in, spare copy out. With lamb
  // two, tensor by tensor; not of a layout().part_of_tensor().
  void update_partition(LocalPartition p, kernels::Optimizer optimizer, const kernels::Hyper& hyper,
                        std::span<const Sum> sums);
  // [as update_partition] Of a part of a tensor: lamb's first pass, and its second with the sums of
  // all parts.
  NormSums sum_part(LocalPartition p, const kernels::Hyper& hyper, const Sum& sum);
  void step_part(LocalPartition p, const kernels::Hyper& hyper, const Sum& sum,
                 const NormSums& tensor);
  // [while no update runs; any thread] Into the late sum, which `first` empties before.
  void fold_late(LocalPartition p, const FoldLate& fold);
  // [as update_partition] The master as it is, into the spare.
  void publish_partition(LocalPartition p);

  std::span<float> master(LocalPartition p) const;
  std::span<float> state(LocalPartition p, int array) const;
  int state_arrays() const noexcept { return layout_.shape().state_arrays; }
  const ShardLayout& layout() const noexcept { return layout_; }

 private:
  struct Entry {
    Version version;
    int current = 0;
    std::uint32_t readers[2] = {0, 0};
    bool updating = false;
  };
  std::byte* spare(LocalPartition p) const;
  const std::byte* then(LocalPartition p, WorkerId worker) const;
  std::byte* late_sum(LocalPartition p) const;
  kernels::Gradient gradient(LocalPartition p, const Contribution& contribution) const;
  // What goes into these updates; updates[i].gradients are in `gradients`.
  struct Prepared {
    std::vector<kernels::Gradient> gradients;
    std::vector<kernels::UpdateArgs> updates;
  };
  Prepared prepare(LocalPartition p, std::span<const Sum> sums) const;

  const ShardLayout& layout_;
  const ShardBlocks blocks_;
  std::vector<Entry> entries_;
  std::vector<const std::byte*> elsewhere_;  // by slab and partition
};

}  // namespace leeway::server
