#include "transport/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace leeway::transport {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78;
constexpr std::uint32_t kInverted = 0xFFFFFFFF;

constexpr std::uint32_t shift_bits(std::uint32_t crc, int bits) {
  for (int i = 0; i < bits; ++i) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
  return crc;
}

constexpr std::array<std::uint32_t, 256> byte_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) table[i] = shift_bits(i, 8);
  return table;
}
constexpr auto kByteTable = byte_table();

#if defined(__x86_64__)

// The instruction takes three cycles and can start one in each, so three streams run at once, of so
// many bytes each; then the first two are moved past what follows them.
constexpr std::size_t kStream = 1024;

// What so many zero bytes make of a remainder, one table for each of its bytes: it is linear.
class Zeros {
 public:
  explicit constexpr Zeros(std::size_t bytes) {
    for (std::uint32_t place = 0; place < 4; ++place) {
      for (std::uint32_t bit = 0; bit < 8; ++bit) {
        std::uint32_t crc = std::uint32_t{1} << (8 * place + bit);
        for (std::size_t i = 0; i < bytes; ++i) crc = (crc >> 8) ^ kByteTable[crc & 0xFF];
        for (std::uint32_t value = 0; value < 256; ++value)
          if ((value >> bit & 1) != 0) tables_[place][value] ^= crc;
      }
    }
  }
  std::uint32_t operator()(std::uint32_t crc) const {
    return tables_[0][crc & 0xFF] ^ tables_[1][crc >> 8 & 0xFF] ^ tables_[2][crc >> 16 & 0xFF] ^
           tables_[3][crc >> 24];
  }

 private:
  std::array<std::array<std::uint32_t, 256>, 4> tables_{};
};

std::uint64_t load(const std::byte* from) {
  std::uint64_t word = 0;
  std::memcpy(&word, from, sizeof word);
  return word;
}

[[gnu::target("sse4.2")]] std::uint32_t by_instruction(std::span<const std::byte> bytes) {
  static const Zeros kPast(kStream);
  std::uint64_t crc = kInverted;
  while (bytes.size() >= 3 * kStream) {
    std::uint64_t second = 0, third = 0;
    const std::byte* const at = bytes.data();
    for (std::size_t i = 0; i < kStream; i += 8) {
      crc = _mm_crc32_u64(crc, load(at + i));
      second = _mm_crc32_u64(second, load(at + kStream + i));
      third = _mm_crc32_u64(third, load(at + 2 * kStream + i));
    }
    crc = kPast(static_cast<std::uint32_t>(crc)) ^ second;
    crc = kPast(static_cast<std::uint32_t>(crc)) ^ third;
    bytes = bytes.subspan(3 * kStream);
  }
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) crc = _mm_crc32_u64(crc, load(bytes.data()));
  auto rest = static_cast<std::uint32_t>(crc);
  for (const std::byte byte : bytes) rest = _mm_crc32_u8(rest, static_cast<unsigned char>(byte));
  return rest ^ kInverted;
}

#endif

}  // namespace

std::uint32_t crc32c_by_table(std::span<const std::byte> bytes) {
  std::uint32_t crc = kInverted;
  for (const std::byte byte : bytes)
    crc = (crc >> 8) ^ kByteTable[(crc ^ static_cast<std::uint32_t>(byte)) & 0xFF];
  return crc ^ kInverted;
}

std::uint32_t crc32c(std::span<const std::byte> bytes) {
#if defined(__x86_64__)
  static const bool kInstruction = __builtin_cpu_supports("sse4.2") != 0;
  if (kInstruction) return by_instruction(bytes);
#endif
  return crc32c_by_table(bytes);
}

}  // namespace leeway::transport
