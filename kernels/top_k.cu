// Top-k of kernels/codec.h. The smallest magnitude that travels is found digit by digit from above:
// each time one pass counts the digits of what is left. Then warps count, each in a stripe of its
// own, what is larger and what is equal; from the sums of these counts each warp knows where in the
// payload its elements go, in their order, so ties end as on the CPU.
#include "kernels/batch.cuh"
#include "kernels/codec.h"

namespace leeway::kernels::LEEWAY_DEVICE {

constexpr unsigned kTopKThreads = 256;
constexpr unsigned kTopKWarps = kTopKThreads / kWarpSize;
constexpr std::int64_t kStripe = 1024;
constexpr std::int64_t kTopKTile = kTopKWarps * kStripe;
constexpr int kLargestDigit = 11;
constexpr unsigned kBins = 1u << kLargestDigit;
// Elements that a thread loads before it looks at the first.
constexpr std::int64_t kAhead = 8;

struct TopKItem {
  float* sums;
  std::int64_t elements;
  std::uint32_t* indices;
  Bfloat16* values;
  std::uint32_t kept;
};

struct Threshold {
  std::uint32_t bits;    // of its magnitude, as far as they are found
  std::uint32_t larger;  // elements that are
};

struct TopKScratch {
  std::uint32_t* counts;   // kBins an item; zeros between the passes
  Threshold* thresholds;   // one an item
  std::uint64_t* stripes;  // of all items: how many elements are larger << 32 | equal
};

constexpr std::size_t kCountBytes = kMaxBatch * kBins * sizeof(std::uint32_t);
constexpr std::size_t kThresholdBytes = kMaxBatch * sizeof(Threshold);

__device__ inline std::uint32_t magnitude_of(float value) {
  return float_to_bits(value) & 0x7FFFFFFFu;
}

struct Prefix {
  std::uint64_t before, all;
};

// The sum of what the threads before this one gave, and of what all did. All threads call it.
__device__ inline Prefix block_prefix(std::uint64_t mine) {
  __shared__ std::uint64_t sums[kTopKThreads];
  sums[threadIdx.x] = mine;
  __syncthreads();
  for (unsigned distance = 1; distance < kTopKThreads; distance *= 2) {
    const std::uint64_t below = threadIdx.x >= distance ? sums[threadIdx.x - distance] : 0;
    __syncthreads();
    sums[threadIdx.x] += below;
    __syncthreads();
  }
  const Prefix prefix{sums[threadIdx.x] - mine, sums[kTopKThreads - 1]};
  __syncthreads();  // before anybody's next call
  return prefix;
}

__global__ void count_digits_kernel(Batch<TopKItem> batch, TopKScratch scratch, int low, int width,
                                    std::uint32_t known) {
  __shared__ std::uint32_t counts[kBins];
  const std::uint32_t digits = (1u << width) - 1;
  for (std::int64_t tile = blockIdx.x; tile < batch.first_tile[batch.count]; tile += gridDim.x) {
    const std::uint32_t item = item_of(batch, tile);
    const float* __restrict__ sums = batch.list[item].sums;
    const std::uint32_t found = known == 0 ? 0 : scratch.thresholds[item].bits;
    const std::int64_t begin = (tile - batch.first_tile[item]) * kTopKTile;
    const std::int64_t end = begin + kTopKTile < batch.list[item].elements
                                 ? begin + kTopKTile
                                 : batch.list[item].elements;
    for (unsigned bin = threadIdx.x; bin < kBins; bin += kTopKThreads) counts[bin] = 0;
    __syncthreads();
    // Runs of one digit, such as those of zeros, count once, or all threads would wait for one bin.
    std::uint32_t last = 0;
    std::uint32_t run = 0;
    for (std::int64_t i = begin + threadIdx.x; i < end; i += kTopKThreads) {
      const std::uint32_t bits = magnitude_of(sums[i]);
      if ((bits & known) != found) continue;
      const std::uint32_t digit = bits >> low & digits;
      if (digit != last && run != 0) {
        atomicAdd(&counts[last], run);
        run = 0;
      }
      last = digit;
      ++run;
    }
    if (run != 0) atomicAdd(&counts[last], run);
    __syncthreads();
    for (unsigned bin = threadIdx.x; bin < kBins; bin += kTopKThreads)
      if (counts[bin] != 0) atomicAdd(&scratch.counts[item * kBins + bin], counts[bin]);
    __syncthreads();
  }
}

// A block an item: the digit in which the last one that travels lies.
__global__ void find_digit_kernel(Batch<TopKItem> batch, TopKScratch scratch, int low,
                                  std::uint32_t known) {
  constexpr unsigned kEach = kBins / kTopKThreads;
  const unsigned item = blockIdx.x;
  const Threshold found = known == 0 ? Threshold{0, 0} : scratch.thresholds[item];
  const std::uint32_t kept = batch.list[item].kept;
  // Thread 0 has the largest digits.
  std::uint32_t* const mine = scratch.counts + item * kBins + (kBins - (threadIdx.x + 1) * kEach);
  std::uint32_t counts[kEach];
  std::uint64_t sum = 0;
#pragma unroll
  for (unsigned i = 0; i < kEach; ++i) {
    counts[i] = mine[kEach - 1 - i];
    mine[kEach - 1 - i] = 0;
    sum += counts[i];
  }
  const std::uint64_t before = found.larger + block_prefix(sum).before;
  if (before >= kept || before + sum < kept) return;
  std::uint64_t larger = before;
  unsigned at = 0;
  while (larger + counts[at] < kept) larger += counts[at++];
  const std::uint32_t digit = kBins - 1 - (threadIdx.x * kEach + at);
  scratch.thresholds[item] = {found.bits | digit << low, static_cast<std::uint32_t>(larger)};
}

// A warp a stripe.
__global__ void count_stripes_kernel(Batch<TopKItem> batch, TopKScratch scratch) {
  const unsigned lane = threadIdx.x % kWarpSize;
  const unsigned warp = threadIdx.x / kWarpSize;
  for (std::int64_t tile = blockIdx.x; tile < batch.first_tile[batch.count]; tile += gridDim.x) {
    const std::uint32_t item = item_of(batch, tile);
    const float* __restrict__ sums = batch.list[item].sums;
    const std::uint32_t bits = scratch.thresholds[item].bits;
    const std::int64_t begin = (tile - batch.first_tile[item]) * kTopKTile + warp * kStripe;
    const std::int64_t end =
        begin + kStripe < batch.list[item].elements ? begin + kStripe : batch.list[item].elements;
    std::uint32_t counted = 0;  // larger << 16 | equal
    for (std::int64_t i = begin + lane; i < end; i += kWarpSize) {
      const std::uint32_t magnitude = magnitude_of(sums[i]);
      counted += magnitude > bits ? 1u << 16 : magnitude == bits ? 1u : 0u;
    }
    for (unsigned offset = kWarpSize / 2; offset > 0; offset /= 2)
      counted += __shfl_xor_sync(kAllLanes, counted, offset);
    if (lane == 0)
      scratch.stripes[tile * kTopKWarps + warp] =
          static_cast<std::uint64_t>(counted >> 16) << 32 | (counted & 0xFFFFu);
  }
}

// A block an item: what each stripe counted becomes what those before it did.
__global__ void add_stripes_kernel(Batch<TopKItem> batch, TopKScratch scratch) {
  const unsigned item = blockIdx.x;
  const std::int64_t end = batch.first_tile[item + 1] * kTopKWarps;
  std::uint64_t before = 0;
  for (std::int64_t from = batch.first_tile[item] * kTopKWarps; from < end; from += kTopKThreads) {
    const std::int64_t i = from + threadIdx.x;
    const Prefix prefix = block_prefix(i < end ? scratch.stripes[i] : 0);
    if (i < end) scratch.stripes[i] = before + prefix.before;
    before += prefix.all;
  }
}

// A warp a stripe.
__global__ void take_largest_kernel(Batch<TopKItem> batch, TopKScratch scratch,
                                    float residual_scale, std::int32_t* not_finite) {
  const unsigned lane = threadIdx.x % kWarpSize;
  const unsigned warp = threadIdx.x / kWarpSize;
  const unsigned lanes_before = (1u << lane) - 1;
  std::uint32_t most = 0;
  for (std::int64_t tile = blockIdx.x; tile < batch.first_tile[batch.count]; tile += gridDim.x) {
    const std::uint32_t number = item_of(batch, tile);
    const TopKItem& item = batch.list[number];
    const Threshold threshold = scratch.thresholds[number];
    const std::uint32_t equals = item.kept - threshold.larger;  // that travel
    const std::uint64_t before = scratch.stripes[tile * kTopKWarps + warp];
    auto larger = static_cast<std::uint32_t>(before >> 32);
    auto equal = static_cast<std::uint32_t>(before);
    const std::int64_t begin = (tile - batch.first_tile[number]) * kTopKTile + warp * kStripe;
    for (std::int64_t row = begin; row < begin + kStripe; row += kAhead * kWarpSize) {
      float sums[kAhead];
#pragma unroll
      for (std::int64_t n = 0; n < kAhead; ++n) {
        const std::int64_t i = row + n * kWarpSize + lane;
        sums[n] = i < item.elements ? item.sums[i] : 0.0f;
      }
#pragma unroll
      for (std::int64_t n = 0; n < kAhead; ++n) {
        const std::int64_t i = row + n * kWarpSize + lane;
        const bool there = i < item.elements;
        const std::uint32_t magnitude = magnitude_of(sums[n]);
        const bool is_larger = there && magnitude > threshold.bits;
        const bool is_equal = there && magnitude == threshold.bits;
        const unsigned larger_lanes = __ballot_sync(kAllLanes, is_larger);
        const unsigned equal_lanes = __ballot_sync(kAllLanes, is_equal);
        const std::uint32_t equal_before = equal + __popc(equal_lanes & lanes_before);
        float rest = sums[n];
        most = magnitude > most ? magnitude : most;
        if (is_larger || (is_equal && equal_before < equals)) {
          const std::uint32_t place = larger + __popc(larger_lanes & lanes_before) +
                                      (equal_before < equals ? equal_before : equals);
          const Bfloat16 value = float_to_bfloat16(sums[n]);
          const float sent = bits_to_float(static_cast<std::uint32_t>(value.bits) << 16);
          item.indices[place] = static_cast<std::uint32_t>(i);
          item.values[place] = value;
          most = magnitude_of(sent) > most ? magnitude_of(sent) : most;
          rest = rest - sent;
        }
        if (there) item.sums[i] = rest * residual_scale;
        larger += __popc(larger_lanes);
        equal += __popc(equal_lanes);
      }
    }
  }
  // All that write, write the same.
  if (most >= 0x7F800000u) *not_finite = 1;
}

std::size_t top_k_scratch_bytes(std::span<const TopKPart> parts) {
  std::uint64_t tiles = 0;
  for (const TopKPart& part : parts) tiles += (part.elements + kTopKTile - 1) / kTopKTile;
  return kCountBytes + kThresholdBytes + tiles * kTopKWarps * sizeof(std::uint64_t);
}

void encode_top_k(Stream stream, const GradientCodec& codec, std::span<const TopKPart> parts,
                  float residual_scale, std::int32_t* not_finite, std::byte* room) {
  const TopKScratch scratch{reinterpret_cast<std::uint32_t*>(room),
                            reinterpret_cast<Threshold*>(room + kCountBytes),
                            reinterpret_cast<std::uint64_t*>(room + kCountBytes + kThresholdBytes)};
  const auto item = [&](const TopKPart& part) {
    const std::uint64_t kept = codec.kept(part.elements);
    return TopKItem{part.sums, static_cast<std::int64_t>(part.elements),
                    reinterpret_cast<std::uint32_t*>(part.payload),
                    reinterpret_cast<Bfloat16*>(part.payload + 4 * kept),
                    static_cast<std::uint32_t>(kept)};
  };
  for (std::size_t at = 0; at < parts.size();) {
    const auto batch = next_batch<TopKItem>(parts, at, kTopKTile, item,
                                            [](const TopKPart& part) { return part.elements; });
    const LaunchShape tiles = shape_of(batch, kTopKThreads);
    const LaunchShape items{batch.count, kTopKThreads};
    std::uint32_t known = 0;
    for (int low = 31; low > 0;) {
      const int width = low == 31 ? kLargestDigit : 10;
      low -= width;
      launch(count_digits_kernel, tiles, stream, batch, scratch, low, width, known);
      launch(find_digit_kernel, items, stream, batch, scratch, low, known);
      known |= ((1u << width) - 1) << low;
    }
    launch(count_stripes_kernel, tiles, stream, batch, scratch);
    launch(add_stripes_kernel, items, stream, batch, scratch);
    launch(take_largest_kernel, tiles, stream, batch, scratch, residual_scale, not_finite);
  }
}

}  // namespace leeway::kernels::LEEWAY_DEVICE
