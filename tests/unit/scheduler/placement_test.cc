#include "scheduler/placement.h"

#include <algorithm>
#include <random>

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
