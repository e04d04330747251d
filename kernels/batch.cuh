// Many arrays in one launch: each is cut into tiles, and blocks take the tiles of all in grid
// strides. The list travels in the launch's parameters, so nothing is copied to the device first.
#pragma once

#include "kernels/device_math.cuh"

namespace leeway::kernels::LEEWAY_DEVICE {

constexpr std::size_t kMaxBatch = 64;  // parameters of a launch are 4 KiB

template <typename Item>
struct Batch {
  Item list[kMaxBatch];
  std::int64_t first_tile[kMaxBatch + 1];  // of each, and the end
  std::uint32_t count;
};

// The next ones of `all`, from `at` on, which moves; make(one) is an Item, elements(one) its
// length.
template <typename Item, typename All, typename Make, typename Elements>
Batch<Item> next_batch(const All& all, std::size_t& at, std::int64_t tile, Make make,
                       Elements elements) {
  Batch<Item> batch{};
  for (; at < all.size() && batch.count < kMaxBatch; ++at) {
    const auto length = static_cast<std::int64_t>(elements(all[at]));
    if (length == 0) continue;
    batch.list[batch.count] = make(all[at]);
    const std::int64_t first = batch.first_tile[batch.count];
    batch.first_tile[++batch.count] = first + (length + tile - 1) / tile;
  }
  return batch;
}

template <typename Item>
LaunchShape shape_of(const Batch<Item>& batch, unsigned threads) {
  const std::int64_t tiles = batch.first_tile[batch.count];
  return {static_cast<unsigned>(tiles < kMostBlocks ? tiles : kMostBlocks), threads};
}

// Whose tile it is.
template <typename Item>
__device__ inline std::uint32_t item_of(const Batch<Item>& batch, std::int64_t tile) {
  std::uint32_t low = 0;
  std::uint32_t high = batch.count;
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    if (batch.first_tile[middle] <= tile)
      low = middle;
    else
      high = middle;
  }
  return low;
}

}  // namespace leeway::kernels::LEEWAY_DEVICE
