#include "scheduler/placement.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "job_fixture.h"

namespace leeway::scheduler {
namespace {

double ratio(const Placement& placement, std::uint32_t servers) {
  const auto sizes = shard_sizes(placement.partitions, servers);
  const auto [least, most] = std::minmax_element(sizes.begin(), sizes.end());
  return *least == 0 ? 1e9 : static_cast<double>(*most) / static_cast<double>(*least);
}

Placement placed(std::vector<rpc::TensorSpec> tensors, std::uint64_t partition, std::uint32_t n) {
  auto checked = check_model(std::move(tensors));
  REQUIRE(checked.has_value());
  auto out = place(*checked, partition, n);
  REQUIRE(out.has_value());
  return *out;
}

// Every element is in exactly one partition, in order, and on a server that is there.
void check_covers(const Placement& placement, std::uint64_t partition, std::uint32_t servers) {
  std::vector<std::int64_t> covered(placement.tensors.size());
  std::int32_t last_tensor = 0;
  for (std::size_t i = 0; i < placement.partitions.size(); ++i) {
    const rpc::Partition& p = placement.partitions[i];
    CHECK(p.id == static_cast<std::int32_t>(i));
    CHECK(p.tensor >= last_tensor);
    last_tensor = p.tensor;
    CHECK(p.first == covered[static_cast<std::size_t>(p.tensor)]);
    CHECK(p.elements > 0);
    if (partition % 1024 == 0) CHECK(p.first % 1024 == 0);  // blocks of norms stay whole
    CHECK(p.elements <= static_cast<std::int64_t>(partition));
    CHECK(p.server >= 0);
    CHECK(p.server < static_cast<std::int32_t>(servers));
    covered[static_cast<std::size_t>(p.tensor)] += p.elements;
  }
  for (std::size_t t = 0; t < covered.size(); ++t)
    CHECK(covered[t] == static_cast<std::int64_t>(*element_count(placement.tensors[t].shape)));
}

TEST_CASE("Y1 an embedding of over half of all parameters is split over three servers") {
  for (const std::int64_t rows : {3'000, 50'000, 2'000'000}) {
    const auto placement = placed({tensor("embedding", {rows, 64}), tensor("w1", {rows, 20}),
                                   tensor("w2", {rows, 20}), tensor("b", {64})},
                                  1 << 20, 3);
    check_covers(placement, 1 << 20, 3);
    CHECK(ratio(placement, 3) <= 1.2);
    std::vector<bool> on(3);
    for (const rpc::Partition& p : placement.partitions)
      if (placement.tensors[static_cast<std::size_t>(p.tensor)].name == "embedding")
        on[static_cast<std::size_t>(p.server)] = true;
    CHECK(std::count(on.begin(), on.end(), true) == 3);
  }
}

// By the published shapes.
std::vector<rpc::TensorSpec> transformer_7b() {
  std::vector<rpc::TensorSpec> model{tensor("embedding", {32000, 4096}),
                                     tensor("head", {32000, 4096}), tensor("norm", {4096})};
  for (int layer = 0; layer < 32; ++layer) {
    const std::string prefix = "layer" + std::to_string(layer) + ".";
    for (const char* name : {"q", "k", "v", "o"})
      model.push_back(tensor(prefix + name, {4096, 4096}));
    for (const char* name : {"up", "gate", "down"})
      model.push_back(tensor(prefix + name, {11008, 4096}));
    for (const char* name : {"norm1", "norm2"}) model.push_back(tensor(prefix + name, {4096}));
  }
  return model;
}

std::vector<rpc::TensorSpec> resnet50() {
  std::vector<rpc::TensorSpec> model{tensor("conv1", {64, 3, 7, 7}), tensor("fc", {1000, 2048}),
                                     tensor("fc.bias", {1000})};
  std::int64_t in = 64;
  const std::int64_t blocks[] = {3, 4, 6, 3};
  for (std::int64_t stage = 0; stage < 4; ++stage)
    for (std::int64_t block = 0; block < blocks[stage]; ++block) {
      const std::string prefix = "s" + std::to_string(stage) + "." + std::to_string(block) + ".";
      const std::int64_t width = std::int64_t{64} << stage;
      model.push_back(tensor(prefix + "conv1", {width, in, 1, 1}));
      model.push_back(tensor(prefix + "conv2", {width, width, 3, 3}));
      model.push_back(tensor(prefix + "conv3", {width * 4, width, 1, 1}));
      if (block == 0) model.push_back(tensor(prefix + "down", {width * 4, in, 1, 1}));
      for (const char* name : {"bn1", "bn2"}) model.push_back(tensor(prefix + name, {2, width}));
      model.push_back(tensor(prefix + "bn3", {2, width * 4}));
      in = width * 4;
    }
  return model;
}

std::vector<rpc::TensorSpec> mostly_a_table() {
  std::vector<rpc::TensorSpec> model{tensor("table", {900'000, 64})};
  for (int i = 0; i < 25; ++i) model.push_back(tensor("dense" + std::to_string(i), {400, 640}));
  return model;
}

// Elements whose server differs.
std::uint64_t moved(const Placement& before, const Placement& after) {
  std::uint64_t differ = 0;
  std::size_t b = 0;
  for (const rpc::Partition& p : after.partitions) {
    std::int64_t at = p.first;
    while (at < p.first + p.elements) {
      const auto ended = [&](const rpc::Partition& old) {
        return old.tensor < p.tensor || (old.tensor == p.tensor && old.first + old.elements <= at);
      };
      while (ended(before.partitions[b])) ++b;
      const rpc::Partition& old = before.partitions[b];
      const std::int64_t end = std::min(p.first + p.elements, old.first + old.elements);
      if (old.server != p.server) differ += static_cast<std::uint64_t>(end - at);
      at = end;
    }
  }
  return differ;
}

TEST_CASE("Y1 real models lie evenly on up to 256 servers, and one more moves the least") {
  const std::pair<std::string, std::vector<rpc::TensorSpec>> models[] = {
      {"transformer of 7 B", transformer_7b()},
      {"ResNet-50", resnet50()},
      {"a table of 90 %", mostly_a_table()}};
  for (const auto& [name, model] : models) {
    CAPTURE(name);
    double worst_ratio = 1, worst_move = 0;
    std::size_t most_partitions = 0;
    auto before = placed(model, 1 << 20, 1);
    std::uint64_t total = 0;
    for (const rpc::Partition& p : before.partitions)
      total += static_cast<std::uint64_t>(p.elements);
    for (std::uint32_t servers = 2; servers <= 256; servers += servers < 20 ? 1 : 59) {
      CAPTURE(servers);
      if (servers > 20) before = placed(model, 1 << 20, servers - 1);
      const auto after = placed(model, 1 << 20, servers);
      check_covers(after, 1 << 20, servers);
      worst_ratio = std::max(worst_ratio, ratio(after, servers));
      const double ideal = static_cast<double>(total) / servers;
      worst_move = std::max(worst_move, static_cast<double>(moved(before, after)) / ideal);
      most_partitions = std::max(most_partitions, after.partitions.size());
      before = after;
    }
    MESSAGE(name << ": largest over smallest shard at most " << worst_ratio
                 << ", moved by one more server at most " << worst_move
                 << " of 1/(n+1), partitions at most " << most_partitions);
    CHECK(worst_ratio <= 1.05);
    CHECK(worst_move <= 1.01);
  }
}

TEST_CASE("a large tensor lies on all servers, so that they share the work at any time of a step") {
  const auto placement = placed(transformer_7b(), 1 << 20, 4);
  std::map<std::int32_t, std::set<std::int32_t>> servers;
  for (const rpc::Partition& p : placement.partitions) servers[p.tensor].insert(p.server);
  for (const auto& [t, on] : servers)
    if (*element_count(placement.tensors[static_cast<std::size_t>(t)].shape) >= 1 << 24)
      CHECK(on.size() == 4);
}

TEST_CASE("random models are covered and even, whatever the order they are declared in") {
  std::mt19937 random(20);
  for (int round = 0; round < 30; ++round) {
    std::vector<rpc::TensorSpec> tensors;
    for (int t = 0; t < 20; ++t)
      tensors.push_back(
          tensor("t" + std::to_string(t), {static_cast<std::int64_t>(random() % 3000), 1 + t * 7}));
    const std::uint32_t servers = 1 + random() % 8;
    const auto first = placed(tensors, 100'000, servers);
    std::shuffle(tensors.begin(), tensors.end(), random);
    const auto second = placed(tensors, 100'000, servers);
    check_covers(first, 100'000, servers);
    CHECK(ratio(first, servers) <= 1.2);
    CHECK(first.tensors == second.tensors);
    CHECK(first.partitions == second.partitions);
  }
}

TEST_CASE("N6 empty tensors have no partitions, a scalar has one element") {
  const auto placement = placed(
      {tensor("empty", {0}), tensor("wide", {0, 128}), tensor("one", {}), tensor("three", {3})},
      1 << 20, 2);
  check_covers(placement, 1 << 20, 2);
  CHECK(placement.partitions.size() == 2);
  CHECK(placed({}, 1 << 20, 2).partitions.empty());
}

TEST_CASE("N7 a tensor of more than 2^31 elements") {
  const auto placement = placed({tensor("huge", {(std::int64_t{1} << 31) + 8})}, 1 << 20, 2);
  const auto sizes = shard_sizes(placement.partitions, 2);
  CHECK(sizes[0] + sizes[1] == (std::uint64_t{1} << 31) + 8);
}

TEST_CASE("C3 models that make no sense are refused by the tensor's name") {
  const auto refusal = [](std::vector<rpc::TensorSpec> tensors) {
    return error_of(check_model(std::move(tensors)));
  };
  CHECK(
      contains(refusal({tensor("w", {2}), tensor("v", {1}), tensor("w", {2})}), "'w' is declared"));
  CHECK(contains(refusal({tensor("w", {-1})}), "'w'"));
  CHECK(contains(refusal({tensor("w", {INT64_MAX, 4})}), "'w'"));
  CHECK(contains(refusal({tensor("v", {INT64_MAX}), tensor("w", {INT64_MAX})}), "'w'"));
  CHECK(contains(refusal({tensor("", {7})}), "(7,) has no name"));
  CHECK(contains(refusal({tensor(std::string(kMaxNameBytes + 1, 'n'), {7})}), "513 bytes"));
  CHECK(contains(refusal({tensor("w\n", {7})}), "control character"));
  CHECK(contains(refusal({tensor("w", std::vector<std::int64_t>(33, 1))}), "33 dimensions"));
  CHECK(refusal({tensor("w", {1}), tensor("v", {1})}).empty());
  const auto too_many = place({tensor("w", {std::int64_t{1} << 50})}, 1 << 20, 2);
  CHECK(contains(error_of(too_many), "raise partition_elements"));
}

}  // namespace
}  // namespace leeway::scheduler
