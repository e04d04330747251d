// Training whose gradients and weights are in the memory of GPUs that are none: the same weights as
// on the host, whichever way their bytes go, also over a hostile fabric.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/conformance/device_rail.h"
#include "tests/conformance/fabric.h"
#include "tests/conformance/hostile_rail.h"
#include "tests/conformance/training_cluster.h"
#include "transport/endpoint_impl.h"

namespace leeway::conformance {
namespace {

using transport::GpuPath;
using transport::testing::FakeCuda;

using Weights = std::vector<std::vector<float>>;  // by worker; with top-k then one's residual

// Depends on what was pulled, so that old weights or a lost step would show.
void coupled(std::size_t rank, std::uint64_t step, std::span<const float> weights,
             std::span<float> gradient) {
  for (std::size_t i = 0; i < weights.size(); ++i)
    gradient[i] = weights[i] * 0.125f + static_cast<float>((rank + 1) * (step + 1) % 7) * 0.25f;
}

// Each member has a rail for the host's memory alone, and one that reaches GPUs, too.
Weights train(std::optional<TrainingOptions::OnGpus> gpus, std::uint64_t seed,
              const Hostility& mood, const std::string& codec = "f16", Dtype pull = Dtype::kF32) {
  TrainingOptions options{.steps = 5, .codec = codec, .pull = pull, .clip = 0.75f, .gpus = gpus};
  options.open = [&, opened = std::uint64_t{0}]() mutable {
    std::vector<std::unique_ptr<transport::Rail>> rails;
    rails.push_back(std::make_unique<HostileRail>(std::make_unique<LoopbackRail>(),
                                                  seed * 100 + opened++, mood));
    rails.push_back(
        std::make_unique<HostileRail>(std::make_unique<DeviceRail>(), seed * 100 + opened++, mood));
    return transport::endpoint_over(std::move(rails), {.fabric = "hostile", .max_transfer = 400});
  };
  TrainingCluster cluster(options);
  const std::string problem = cluster.train(coupled);
  REQUIRE_MESSAGE(problem.empty(), problem);
  Weights end = cluster.final_weights();
  if (codec == "topk") {
    end.push_back(cluster.residual(1));
    CHECK(std::ranges::any_of(end.back(), [](float x) { return x != 0; }));
    const std::vector<float> sevens(end.back().size(), 7);
    cluster.set_residual(1, sevens);
    CHECK(cluster.residual(1) == sevens);
  }
  return end;
}

}  // namespace

TEST_CASE("training on GPUs: bit by bit what it is on the host") {
  const Weights host = train(std::nullopt, 0, {});
  REQUIRE(host[0] == host[1]);
  for (const GpuPath path : {GpuPath::kStaged, GpuPath::kDmabuf, GpuPath::kPeerModule}) {
    CAPTURE(static_cast<int>(path));
    const bool staged = path == GpuPath::kStaged;
    {
      FakeCuda cuda;
      CHECK(train(TrainingOptions::OnGpus{&cuda, path}, 0, {}) == host);
      CHECK((cuda.open_to_nics() == 0) == staged);
      // Beside bytes, the direct way copies the mark for infinities alone.
      CHECK((cuda.copied_in() > 0) == staged);
    }
    const std::uint64_t seeds = 1 + fabric().seeds / 4;
    for (std::uint64_t seed = fabric().seed; seed < fabric().seed + seeds; ++seed) {
      INFO("seed ", seed);
      FakeCuda cuda;
      REQUIRE(train(TrainingOptions::OnGpus{&cuda, path}, seed, Hostility::drawn(seed)) == host);
    }
  }
}

TEST_CASE("training on GPUs in every codec: bit by bit what it is on the host") {
  Weights before;
  for (const NamedCodec& codec : kGradientCodecs) {
    CAPTURE(codec.name);
    const std::string name(codec.name);
    const Weights host = train(std::nullopt, 0, {}, name);
    REQUIRE(host[0] == host[1]);
    CHECK(host != before);  // the codec does something
    before = host;
    std::uint64_t seed = fabric().seed;
    for (const GpuPath path : {GpuPath::kStaged, GpuPath::kDmabuf}) {
      CAPTURE(static_cast<int>(path));
      INFO("seed ", ++seed);
      FakeCuda cuda;
      CHECK(train(TrainingOptions::OnGpus{&cuda, path}, 0, {}, name) == host);
      CHECK(train(TrainingOptions::OnGpus{&cuda, path}, seed, Hostility::drawn(seed), name) ==
            host);
    }
  }
}

TEST_CASE("training on GPUs with weights of every type: bit by bit what it is on the host") {
  for (const Dtype pull : {Dtype::kF32, Dtype::kF16, Dtype::kBf16}) {
    CAPTURE(to_string(pull));
    const Weights host = train(std::nullopt, 0, {}, "bf16", pull);
    REQUIRE(host[0] == host[1]);
    for (const GpuPath path : {GpuPath::kStaged, GpuPath::kDmabuf}) {
      CAPTURE(static_cast<int>(path));
      const std::uint64_t seed = fabric().seed + static_cast<std::uint64_t>(pull);
      INFO("seed ", seed);
      FakeCuda cuda;
      CHECK(train(TrainingOptions::OnGpus{&cuda, path}, seed, Hostility::drawn(seed), "bf16",
                  pull) == host);
    }
  }
}

}  // namespace leeway::conformance
