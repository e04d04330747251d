#include "transport/bundle.h"

#include <doctest/doctest.h>

namespace leeway::transport {
namespace {

BundlePiece piece(std::uint32_t id, std::uint64_t elements, bool whole = true) {
  return {PartitionId(id), elements, whole};
}

}  // namespace

TEST_CASE("small whole tensors share a bundle, each on a cache line; all others are alone") {
  const std::vector<BundlePiece> pieces{piece(2, 10), piece(3, 1u << 20, false), piece(5, 0),
                                        piece(7, 33), piece(8, 7, false),        piece(9, 1)};
  const auto bundles = make_bundles(pieces);
  REQUIRE(bundles.size() == 3);
  CHECK(bundles[0].id == PartitionId(2));
  REQUIRE(bundles[0].members.size() == 4);
  CHECK(bundles[0].members[1].piece == 2);
  CHECK(bundles[0].members[1].offset == 32);
  CHECK(bundles[0].members[2].piece == 3);
  CHECK(bundles[0].members[2].offset == 32);
  CHECK(bundles[0].members[3].piece == 5);
  CHECK(bundles[0].members[3].offset == 96);
  CHECK(bundles[0].elements == 97);
  CHECK(bundles[1].id == PartitionId(3));
  CHECK(bundles[1].elements == 1u << 20);
  CHECK(bundles[2].id == PartitionId(8));
  CHECK(bundles[2].members.size() == 1);
  CHECK(make_bundles({}).empty());
}

TEST_CASE("tensors with and without weight decay never share a bundle") {
  std::vector<BundlePiece> pieces{piece(0, 10), piece(1, 10), piece(2, 10), piece(3, 10)};
  pieces[1].decays = pieces[3].decays = true;
  const auto bundles = make_bundles(pieces);
  REQUIRE(bundles.size() == 2);
  for (const Bundle& bundle : bundles) {
    CHECK(bundle.members.size() == 2);
    for (const Bundle::Member& member : bundle.members)
      CHECK(pieces[member.piece].decays == bundle.decays);
  }
}

TEST_CASE("a bundle is bounded, and all members are there once") {
  std::vector<BundlePiece> pieces;
  for (std::uint32_t i = 0; i < 100; ++i) pieces.push_back(piece(i, 20000));
  const auto bundles = make_bundles(pieces);
  CHECK(bundles.size() == 8);  // 13 in each
  std::size_t members = 0;
  for (const Bundle& bundle : bundles) {
    CHECK(bundle.elements <= 1u << 18);
    CHECK(bundle.id == pieces[bundle.members[0].piece].id);
    for (const Bundle::Member& member : bundle.members) CHECK(member.piece == members++);
  }
  CHECK(members == pieces.size());
}

}  // namespace leeway::transport
