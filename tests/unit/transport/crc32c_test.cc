#include "transport/crc32c.h"

#include <doctest/doctest.h>

#include <random>
#include <string_view>
#include <vector>

namespace leeway::transport {

TEST_CASE("the published examples of CRC32C") {  // RFC 3720, B.4, and the usual check value
  const std::string_view digits = "123456789";
  const std::vector<std::byte> zeros(32), ones(32, std::byte{0xFF});
  for (auto* crc : {crc32c, crc32c_by_table}) {
    CHECK(crc(std::as_bytes(std::span(digits))) == 0xE3069283);
    CHECK(crc(zeros) == 0x8A9136AA);
    CHECK(crc(ones) == 0x62A8AB43);
    CHECK(crc({}) == 0);
  }
}

TEST_CASE("the instruction gives what the table gives, at every length and alignment") {
  std::mt19937_64 random(5);
  std::vector<std::byte> bytes(20000);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (std::size_t i = 0; i < 400; ++i) {
    const std::size_t begin = random() % 64, size = i < 40 ? i : random() % (bytes.size() - 64);
    const auto some = std::span(bytes).subspan(begin, size);
    REQUIRE(crc32c(some) == crc32c_by_table(some));
  }
}

}  // namespace leeway::transport
