#include "server/shard.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <set>
#include <thread>

#include "common/half.h"
#include "server/compute_pool.h"
#include "server/snapshot.h"

namespace leeway::server {
namespace {

struct Memory {
  explicit Memory(const ShardLayout& layout)
      : masters(layout.master_bytes() / 4),
        state(layout.state_bytes() / 4),
        published(layout.published_bytes()),
        slabs(layout.slab_bytes() / 2),
        then(layout.then_bytes()) {}
  ShardBlocks blocks() {
    return {std::as_writable_bytes(std::span(masters)), std::as_writable_bytes(std::span(state)),
            std::as_writable_bytes(std::span(published)), std::as_writable_bytes(std::span(slabs)),
            std::span(then)};
  }
  std::vector<float> masters, state;
  std::vector<std::byte> published;
  std::vector<Half> slabs;
  std::vector<std::byte> then;
};

void fill_slab(Memory& memory, const ShardLayout& layout, std::size_t p, float value) {
  Half* data = memory.slabs.data() + layout.slab(p, 0).offset / 2;
  std::fill_n(data, layout.shape().elements[p], to_half(value));
}

std::vector<Sum> one_gradient(std::size_t partitions, float scale) {
  return {{.contributions = {{{}, 0, std::vector<float>(partitions, scale)}}}};
}

constexpr kernels::Hyper kPlain{.learning_rate = 1.0f};

}  // namespace

TEST_CASE("an optimizer costs the bytes a parameter that docs/optimizers.md says") {
  for (const OptimizerKind& kind : kOptimizerKinds) {
    CAPTURE(kind.name);
    constexpr std::size_t kPartitionsHere = 16, kElementsHere = 1u << 20;
    const ShardLayout layout(
        {.elements = std::vector<std::uint64_t>(kPartitionsHere, kElementsHere),
         .state_arrays = kind.state_arrays,
         .pull_dtype = Dtype::kF16},
        4);  // per_push, 2 workers
    const double bytes =
        static_cast<double>(layout.total_bytes()) / (kPartitionsHere * kElementsHere);
    const bool two = kind.name == "adam" || kind.name == "adamw" || kind.name == "lamb" ||
                     kind.name == "delayed_nesterov";
    const double documented = kind.name == "sgd" ? 16 : two ? 24 : 20;
    CHECK(bytes >= documented);
    CHECK(bytes < documented * 1.01);
  }
}

TEST_CASE("arrays of one update never share an offset modulo 4 KiB") {
  const ShardLayout layout({{1u << 20, 17, 1u << 18, 0, 1u << 16}, 2, Dtype::kF16}, 3);
  for (const std::size_t p : {0, 2, 4}) {
    std::multiset<std::size_t> offsets{
        layout.master(p).offset % 4096, layout.state(p, 0).offset % 4096,
        layout.state(p, 1).offset % 4096, layout.published(p, 0).offset % 4096,
        layout.published(p, 1).offset % 4096};
    for (std::uint32_t k = 0; k < 3; ++k) offsets.insert(layout.slab(p, k).offset % 4096);
    CHECK(std::set<std::size_t>(offsets.begin(), offsets.end()).size() == offsets.size());
  }
  // And none overlaps the next.
  for (std::size_t p = 0; p + 1 < 5; ++p) {
    CHECK(layout.master(p).offset + layout.master(p).bytes <= layout.master(p + 1).offset);
    CHECK(layout.published(p, 1).offset + layout.published(p, 1).bytes <=
          layout.published(p + 1, 1).offset);
  }
}

TEST_CASE("a model that does not fit is refused with the sum") {
  const ShardShape shape{{1u << 20}, 2, Dtype::kF16};
  const SlabRule rule{.per_clock = true, .staleness = Bound{3}, .workers = 2, .servers = 1};
  SlabRule limited = rule;
  limited.memory_limit = 18u << 20;
  const auto refused = lay_out(shape, limited);
  REQUIRE(!refused);
  CHECK(refused.error().code == Code::kResourceExhausted);
  CHECK(refused.error().message.find("masters 4.0 MiB + optimizer state 8.0 MiB") !=
        std::string::npos);
  limited.memory_limit = 27u << 20;  // 16 MiB, and 2 MiB a slab
  const auto fits = lay_out(shape, limited);
  REQUIRE(fits);
  CHECK(fits->slabs() == 5);
  CHECK(fits->total_bytes() <= limited.memory_limit);
  CHECK(lay_out(shape, rule)->slabs() == 8);  // workers * (staleness + 1)
}

TEST_CASE("each optimizer's bytes per parameter, and what delay compensation costs") {
  constexpr std::uint64_t kElements = 1u << 20;
  for (const OptimizerKind& kind : kOptimizerKinds) {
    CAPTURE(kind.name);
    const auto bytes = [&](std::uint32_t remembered) {
      const ShardLayout layout({.elements = {kElements},
                                .state_arrays = kind.state_arrays,
                                .pull_dtype = Dtype::kF16,
                                .remembered = remembered},
                               4);
      return static_cast<double>(layout.total_bytes()) / kElements;
    };
    // Master, state, two published copies, four slabs; docs/optimizers.md.
    CHECK(bytes(0) == doctest::Approx(4 + 4 * kind.state_arrays + 4 + 8).epsilon(0.01));
    CHECK(bytes(3) == doctest::Approx(bytes(0) + 6).epsilon(0.01));
  }
}

TEST_CASE(
    "lamb: each tensor of a bundle has its own ratio, spared ones have 1, parts get the whole's") {
  // A bundle of two tensors, a bundle that is spared, and a part of a tensor.
  const ShardLayout layout({.elements = {160, 100, 2000},
                            .state_arrays = 2,
                            .pull_dtype = Dtype::kF32,
                            .decays = {true, false, true},
                            .tensors = {{{0, 70}, {96, 160}}, {{0, 100}}, {}}},
                           1);
  CHECK_FALSE(layout.part_of_tensor(0));
  CHECK_FALSE(layout.part_of_tensor(1));
  CHECK(layout.part_of_tensor(2));
  Memory memory(layout);
  Shard shard(layout, memory.blocks());
  for (std::size_t p = 0; p < 3; ++p) {
    fill_slab(memory, layout, p, 1.0f);
    std::ranges::fill(shard.master(static_cast<LocalPartition>(p)), 4.0f);
  }
  std::ranges::fill(shard.master(0).first(70), 2.0f);
  for (const std::size_t between : {70u, 95u}) {
    shard.master(0)[between] = 0;
    memory.slabs[layout.slab(0, 0).offset / 2 + between] = Half{};
  }
  constexpr kernels::Hyper kHyper{.learning_rate = 0.25f};
  const std::vector<Sum> sums = one_gradient(3, 1.0f);
  const auto near = [](std::span<const float> values, float wanted) {
    return std::ranges::all_of(values,
                               [&](float x) { return x == doctest::Approx(wanted).epsilon(1e-5); });
  };
  for (const LocalPartition p : {0, 1}) {
    shard.begin_update(p);
    shard.set_version(p, Version(1));
    shard.update_partition(p, kernels::Optimizer::kLamb, kHyper, sums);
    shard.end_update(p);
  }
  // The first step of every element is 1 at a ratio of 1: the ratio is the root mean square.
  CHECK(near(shard.master(0).first(70), 1.5f));
  CHECK(near(shard.master(0).subspan(96), 3.0f));
  CHECK(near(shard.master(1), 3.75f));
  for (const std::size_t between : {70u, 95u}) CHECK(shard.master(0)[between] == 0);

  shard.begin_update(2);
  shard.set_version(2, Version(1));
  NormSums tensor = shard.sum_part(2, kHyper, sums[0]);
  CHECK(near(shard.master(2), 4.0f));
  for (int i = 0; i < 2000; ++i) tensor.changes.add(3.0);  // another part, of zeros
  shard.step_part(2, kHyper, sums[0], tensor);
  shard.end_update(2);
  CHECK(near(shard.master(2), 3.5f));
  const auto place = shard.begin_read(2).place;
  float published = 0;
  std::memcpy(&published, memory.published.data() + place.offset, sizeof(published));
  CHECK(published == shard.master(2)[0]);
}

TEST_CASE("a gradient is corrected by the weights that its worker was given") {
  const ShardLayout layout(
      {.elements = {100}, .state_arrays = 0, .pull_dtype = Dtype::kF32, .remembered = 2}, 1);
  Memory memory(layout);
  Shard shard(layout, memory.blocks());
  shard.begin_update(0);
  std::ranges::fill(shard.master(0), 10.0f);
  shard.publish_partition(0);
  shard.end_update(0);
  for (const std::uint32_t worker : {0, 1}) {
    const Shard::Reading reading = shard.begin_read(0);
    shard.remember(0, reading.copy, WorkerId(worker));
    shard.end_read(0, reading.copy);
  }
  fill_slab(memory, layout, 0, 2.0f);
  kernels::Hyper hyper{.learning_rate = 1.0f, .delay_compensation = 0.5f};
  const auto update = [&](std::uint32_t worker) {
    std::vector<Sum> sums = one_gradient(1, 1.0f);
    sums[0].contributions[0].step.worker = WorkerId(worker);
    shard.begin_update(0);
    shard.update_partition(0, kernels::Optimizer::kSgd, hyper, sums);
    shard.end_update(0);
    return shard.master(0)[99];
  };
  CHECK(update(0) == 8.0f);  // nothing had changed
  // Worker 1 computed on 10: 2 + 0.5 * 2 * 2 * (8 - 10) = -2.
  CHECK(update(1) == 10.0f);
  const Shard::Reading reading = shard.begin_read(0);
  shard.remember(0, reading.copy, WorkerId(1));
  shard.end_read(0, reading.copy);
  CHECK(update(1) == 8.0f);
}

TEST_CASE("weight decay spares the partitions that it is not for") {
  const ShardLayout layout(
      {.elements = {8, 8}, .state_arrays = 0, .pull_dtype = Dtype::kF32, .decays = {true, false}},
      1);
  Memory memory(layout);
  Shard shard(layout, memory.blocks());
  const kernels::Hyper hyper{.learning_rate = 1.0f, .weight_decay = 0.5f};
  for (const LocalPartition p : {0, 1}) {
    std::ranges::fill(shard.master(p), 10.0f);
    fill_slab(memory, layout, p, 1.0f);
    shard.begin_update(p);
    shard.update_partition(p, kernels::Optimizer::kSgd, hyper, one_gradient(2, 1.0f));
    shard.end_update(p);
  }
  CHECK(shard.master(0)[7] == 4.0f);
  CHECK(shard.master(1)[7] == 9.0f);
}

TEST_CASE("a contribution counts by its factor, an update by its rate") {
  const ShardLayout layout({{8}, 0, Dtype::kF32}, 1);
  Memory memory(layout);
  Shard shard(layout, memory.blocks());
  fill_slab(memory, layout, 0, 4.0f);
  std::vector<Sum> sums = one_gradient(1, 2.0f);
  sums[0].rate = 0.5f;
  sums[0].contributions[0].factor = 0.25f;
  shard.begin_update(0);
  shard.update_partition(0, kernels::Optimizer::kSgd, kPlain, sums);
  CHECK(shard.master(0)[7] == -0.25f);
}

TEST_CASE("N5: ones pushed 4096 times at rate 1 add up exactly; two pushes of 60000 too") {
  const ShardLayout layout({{100}, 0, Dtype::kF32}, 1);
  Memory memory(layout);
  Shard shard(layout, memory.blocks());
  shard.set_version(0, Version(1));
  fill_slab(memory, layout, 0, 1.0f);
  const std::vector<Sum> ones = one_gradient(1, 1.0f);
  const auto update = [&] {
    shard.begin_update(0);
    shard.update_partition(0, kernels::Optimizer::kSgd, kPlain, ones);
    shard.end_update(0);
  };
  for (int i = 0; i < 4096; ++i) update();
  CHECK(shard.master(0)[0] == -4096.0f);
  CHECK(shard.master(0)[99] == -4096.0f);
  CHECK(shard.version(0) == Version(4097));
  fill_slab(memory, layout, 0, 60000.0f);
  update();
  update();
  CHECK(shard.master(0)[50] == -4096.0f - 120000.0f);
}

TEST_CASE("an update waits while its spare copy is read, and pulls see whole versions") {
  const ShardLayout layout({{8}, 0, Dtype::kF32}, 1);
  Memory memory(layout);
  Shard shard(layout, memory.blocks());
  const auto first = shard.begin_read(0);
  shard.begin_update(0);
  CHECK(!shard.may_update(0));
  shard.publish_partition(0);
  shard.end_update(0);
  const auto second = shard.begin_read(0);
  CHECK(second.copy != first.copy);
  CHECK(second.version == first.version.next());
  CHECK(!shard.may_update(0));  // the first reader still has what is now the spare
  shard.end_read(0, first.copy);
  CHECK(shard.may_update(0));
  shard.end_read(0, second.copy);
}

TEST_CASE("C4: while ones are added to 64 MiB, every published copy that a pull reads is uniform") {
  constexpr std::size_t kParts = 16;
  constexpr int kRounds = 8;
  const ShardLayout layout({std::vector<std::uint64_t>(kParts, 1u << 20), 0, Dtype::kF32}, 1);
  Memory memory(layout);
  Shard shard(layout, memory.blocks());
  for (LocalPartition p = 0; p < kParts; ++p) {
    fill_slab(memory, layout, p, -1.0f);
    shard.set_version(p, Version(1));
  }
  const std::vector<Sum> ones = one_gradient(kParts, 1.0f);
  const auto uniform = [](std::span<const float> values, float expected) {
    return std::ranges::all_of(values, [&](float value) { return value == expected; });
  };
  std::atomic<int> torn{0}, pulls{0};
  {
    ComputePool pool(2);
    for (int round = 0; round < kRounds; ++round) {
      // As the engine does: this thread decides, the pool computes, completions come back here.
      std::vector<Shard::Reading> readings;
      for (LocalPartition p = 0; p < kParts; ++p) {
        readings.push_back(shard.begin_read(p));
        REQUIRE(shard.may_update(p));
        shard.begin_update(p);
        pool.run([&, p] { shard.update_partition(p, kernels::Optimizer::kSgd, kPlain, ones); });
        pool.run([&, reading = readings.back()] {
          const auto* copy =
              reinterpret_cast<const float*>(memory.published.data() + reading.place.offset);
          torn += uniform({copy, 1u << 20}, static_cast<float>(round)) ? 0 : 1;
          ++pulls;
        });
      }
      pool.wait();
      for (LocalPartition p = 0; p < kParts; ++p) {
        shard.end_update(p);
        shard.end_read(p, readings[p].copy);
      }
    }
  }
  CHECK(torn == 0);
  CHECK(pulls == kRounds * static_cast<int>(kParts));
  for (LocalPartition p = 0; p < kParts; ++p) CHECK(uniform(shard.master(p), kRounds));
}

TEST_CASE("a snapshot keeps the content of the cut while updates go on") {
  const std::vector<std::uint64_t> elements{1000, 2000, 0, 3000};
  const ShardLayout layout({elements, 1, Dtype::kF16}, 1);
  Memory memory(layout);
  Shard shard(layout, memory.blocks());
  for (LocalPartition p = 0; p < 4; ++p) {
    std::ranges::fill(shard.master(p), 1.0f);
    std::ranges::fill(shard.state(p, 0), 2.0f);
    shard.set_version(p, Version(8));
  }
  auto snapshot = std::make_shared<Snapshot>(TakeSnapshot{.id = "a"}, shard, UINT64_MAX);
  CHECK(snapshot->updates() == 7);
  CHECK(snapshot->bytes() == 6000 * 8);
  std::atomic<int> wrong{0};
  std::jthread writer([&] {
    for (LocalPartition p = 0; p < 4; ++p) {
      const auto arrays = snapshot->acquire(p);
      for (const float value : arrays[0]) wrong += value != 1.0f;
      for (const float value : arrays[1]) wrong += value != 2.0f;
      snapshot->release(p);
    }
  });
  std::set<LocalPartition> left{3, 2, 1, 0};
  while (!left.empty())
    for (LocalPartition p = 0; p < 4; ++p) {
      if (!left.contains(p)) continue;
      const auto claim = snapshot->claim(p);
      if (claim == Snapshot::Claim::kWait) continue;
      if (claim == Snapshot::Claim::kCopyFirst) snapshot->copy_aside(p);
      std::ranges::fill(shard.master(p), 9.0f);
      std::ranges::fill(shard.state(p, 0), 9.0f);
      left.erase(p);
    }
  writer.join();
  CHECK(wrong == 0);
}

TEST_CASE("copies for a snapshot stay within their budget: then updates wait for the writer") {
  const ShardLayout layout({{1000, 1000}, 0, Dtype::kF16}, 1);
  Memory memory(layout);
  Shard shard(layout, memory.blocks());
  shard.set_version(0, Version(1));
  shard.set_version(1, Version(1));
  Snapshot snapshot({.id = "a"}, shard, 4000);
  CHECK(snapshot.claim(1) == Snapshot::Claim::kCopyFirst);
  snapshot.copy_aside(1);
  CHECK(snapshot.claim(0) == Snapshot::Claim::kWait);
  (void)snapshot.acquire(0);
  CHECK(snapshot.claim(0) == Snapshot::Claim::kWait);
  snapshot.release(0);
  CHECK(snapshot.claim(0) == Snapshot::Claim::kFree);
  CHECK(snapshot.claim(1) == Snapshot::Claim::kFree);
}

TEST_CASE("late steps count by their samples, from the late sum as from their slabs") {
  const std::uint64_t elements = 1000;
  const ShardLayout layout({.elements = {elements}, .pull_dtype = Dtype::kF32, .late_sum = true},
                           3);
  Memory memory(layout);
  Shard shard(layout, memory.blocks());
  const auto fill = [&](std::uint32_t slab, float value) {
    std::fill_n(memory.slabs.data() + layout.slab(0, slab).offset / 2, elements, to_half(value));
  };
  const auto part = [](std::uint32_t slab, float weight) {
    return Contribution{.slab = slab, .scales = {4}, .factor = weight};
  };
  const auto update = [&](Sum sum) {
    shard.begin_update(0);
    shard.update_partition(0, kernels::Optimizer::kSgd, kPlain, std::vector<Sum>{std::move(sum)});
    shard.end_update(0);
  };
  for (int round = 1; round <= 2; ++round) {  // the second finds what the first left
    fill(0, 4 * 1.0f);
    fill(1, 4 * 2.0f);
    fill(2, 4 * 8.0f);
    shard.fold_late(0, {.contributions = {part(0, 8)}, .first = true});
    shard.fold_late(0, {.contributions = {part(1, 24)}});
    // (8 * 1 + 24 * 2 + 32 * 8) / 64, in units of 8.
    update({.contributions = {part(2, 4)}, .weight = 1.0f / 8, .late = 1.0f / 8});
    CHECK(shard.master(0).front() == -4.875f * static_cast<float>(round));
    CHECK(shard.master(0).back() == -4.875f * static_cast<float>(round));
  }
}

}  // namespace leeway::server
