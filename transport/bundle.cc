#include "transport/bundle.h"

#include <optional>

namespace leeway::transport {
namespace {

// A transfer of a tensor as large as this costs little more than its bytes.
constexpr std::uint64_t kSmallElements = 1u << 15;
// A bundle leaves when its last gradient is there: larger ones would begin too late.
constexpr std::uint64_t kMostElements = 1u << 18;
constexpr std::uint64_t kAlignElements = 32;  // a cache line of FP16

}  // namespace

std::vector<Bundle> make_bundles(std::span<const BundlePiece> pieces) {
  std::vector<Bundle> bundles;
  std::optional<std::size_t> opened[2];  // the bundles that take small ones, by decays
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const BundlePiece& piece = pieces[i];
    std::optional<std::size_t>& open = opened[piece.decays ? 1 : 0];
    const bool small = piece.whole_tensor && piece.elements <= kSmallElements;
    if (small && open) {
      Bundle& bundle = bundles[*open];
      const std::uint64_t offset =
          (bundle.elements + kAlignElements - 1) / kAlignElements * kAlignElements;
      if (offset + piece.elements <= kMostElements) {
        bundle.members.push_back({i, offset});
        bundle.elements = offset + piece.elements;
        continue;
      }
    }
    if (small) open = bundles.size();
    bundles.push_back({piece.id, piece.elements, {{i, 0}}, piece.decays});
  }
  return bundles;
}

}  // namespace leeway::transport
