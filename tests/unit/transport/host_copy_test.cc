#include "transport/host_copy.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace leeway::transport {

TEST_CASE("a copy past the caches is a copy, at every alignment, and touches nothing beside it") {
  constexpr std::size_t kRoom = 512;
  std::vector<std::byte> from(kRoom);
  for (std::size_t i = 0; i < kRoom; ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
  for (std::size_t source : {0, 1, 16, 33})
    for (std::size_t target = 0; target < 65; ++target)
      for (std::size_t size : {0, 1, 15, 63, 64, 65, 127, 128, 129, 200, 300}) {
        CAPTURE(source);
        CAPTURE(target);
        CAPTURE(size);
        std::vector<std::byte> to(kRoom, std::byte{0xEE});
        copy_past_caches(to.data() + target, from.data() + source, size);
        const auto begin = to.begin() + static_cast<std::ptrdiff_t>(target);
        const auto end = begin + static_cast<std::ptrdiff_t>(size);
        REQUIRE(std::equal(begin, end, from.begin() + static_cast<std::ptrdiff_t>(source)));
        const auto untouched = [](std::byte byte) { return byte == std::byte{0xEE}; };
        REQUIRE(std::all_of(to.begin(), begin, untouched));
        REQUIRE(std::all_of(end, to.end(), untouched));
      }
}

}  // namespace leeway::transport
