// Where the arrays of a shard lie, and what that costs. Pure arithmetic, done before anything is
// allocated, so that a model that does not fit is refused with the sum shown.
//
// Five blocks of memory, each page-aligned by its allocator:
//
//   masters    FP32, one array a partition            initial values are read into it
//   state      FP32, 0, 1 or 2 arrays a partition     the optimizer's own
//              FP32, one more with a quorum           the sum of late steps
//   published  pull dtype, two copies a partition     pulls are written out of it
//   slabs      the gradients' codec, one payload a partition and slab; they are read into it
//   then       pull dtype, one array a partition and  delay compensation alone: the weights that
//              worker                                 each worker computes its gradient on
//
// Arrays of 64 KiB and more start at their own offset modulo 4 KiB: two arrays of one update at the
// same one make the update three to five times slower (docs/performance.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/job_settings.h"
#include "common/tensor.h"

namespace leeway::server {

struct ShardShape {
  // In elements of a partition.
  struct Range {
    std::uint64_t begin = 0, end = 0;
  };
  std::vector<std::uint64_t> elements;  // by partition
  int state_arrays = 0;
  Dtype pull_dtype = Dtype::kF16;
  GradientCodec codec;
  std::uint32_t remembered = 0;  // workers whose last weights are kept
  std::vector<bool> decays;      // by partition: weight decay applies; empty = to all
  bool late_sum = false;         // with a quorum: where late steps are summed
  // lamb: by partition, the tensors that lie whole in it; none where it is a part of one.
  std::vector<std::vector<Range>> tensors;
};

class ShardLayout {
 public:
  ShardLayout(ShardShape shape, std::uint32_t slabs);

  struct Place {
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };
  Place master(std::size_t partition) const { return at(masters_, partition, 4); }
  Place state(std::size_t partition, int array) const {
    return at(state_[static_cast<std::size_t>(array)], partition, 4);
  }
  Place late_sum(std::size_t partition) const { return state(partition, shape_.state_arrays); }
  Place published(std::size_t partition, int copy) const {
    return at(published_[static_cast<std::size_t>(copy)], partition, size_of(shape_.pull_dtype));
  }
  Place slab(std::size_t partition, std::uint32_t slab) const {
    return {slabs_[slab][partition], shape_.codec.bytes(shape_.elements[partition])};
  }

  Place then(std::size_t partition, std::uint32_t worker) const {
    return at(then_[worker], partition, size_of(shape_.pull_dtype));
  }
  bool decays(std::size_t partition) const {
    return shape_.decays.empty() || shape_.decays[partition];
  }

  // Norms come from more than this partition.
  bool part_of_tensor(std::size_t partition) const {
    return !shape_.tensors.empty() && decays(partition) && shape_.tensors[partition].empty() &&
           shape_.elements[partition] > 0;
  }

  std::size_t master_bytes() const noexcept { return sizes_[0]; }
  std::size_t state_bytes() const noexcept { return sizes_[1]; }
  std::size_t published_bytes() const noexcept { return sizes_[2]; }
  std::size_t slab_bytes() const noexcept { return sizes_[3]; }
  std::size_t then_bytes() const noexcept { return sizes_[4]; }
  std::size_t total_bytes() const noexcept {
    return sizes_[0] + sizes_[1] + sizes_[2] + sizes_[3] + sizes_[4];
  }
  std::uint32_t slabs() const noexcept { return static_cast<std::uint32_t>(slabs_.size()); }
  const ShardShape& shape() const noexcept { return shape_; }
  std::uint64_t total_elements() const;
  // masters 1.0 GiB + state ... = 4.5 GiB
  std::string sum() const;

 private:
  using Offsets = std::vector<std::size_t>;
  Place at(const Offsets& offsets, std::size_t partition, std::size_t element_bytes) const {
    return {offsets[partition], shape_.elements[partition] * element_bytes};
  }
  // Where arrays of bytes_of(elements) lie, one a partition, after `end`, which moves.
  template <typename BytesOf>
  Offsets lay(std::size_t& end, std::size_t kind, BytesOf bytes_of) const;

  ShardShape shape_;
  Offsets masters_;
  std::vector<Offsets> state_, published_, slabs_, then_;
  std::size_t sizes_[5] = {0, 0, 0, 0, 0};
};

struct SlabRule {
  bool per_clock = false;
  Bound staleness;
  std::uint32_t workers = 1;
  std::uint32_t servers = 1;
  std::uint64_t memory_limit = 0;  // 0 = none
  std::uint32_t minimum() const;   // fewer could make steps wait for ever
  std::uint64_t useful() const;    // more would never be used
};

// As many slabs as the limit allows and the rule can use. kResourceExhausted shows the sum.
Result<ShardLayout> lay_out(const ShardShape& shape, const SlabRule& rule);

}  // namespace leeway::server
