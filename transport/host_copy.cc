#include "transport/host_copy.h"

#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace leeway::transport {

#ifdef __SSE2__
void copy_past_caches(std::byte* to, const std::byte* from, std::size_t size) noexcept {
  constexpr std::size_t kLine = 64;
  const std::size_t head = (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine;
  if (size < head + kLine) {
    std::memcpy(to, from, size);
    return;
  }
  std::memcpy(to, from, head);
  std::size_t at = head;
  for (; at + kLine <= size; at += kLine) {
    const auto* const source = reinterpret_cast<const __m128i*>(from + at);
    auto* const target = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1),
                  c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  std::memcpy(to + at, from + at, size - at);
  _mm_sfence();  // whoever is told of the bytes next finds them
}
#else
void copy_past_caches(std::byte* to, const std::byte* from, std::size_t size) noexcept {
  std::memcpy(to, from, size);
}
#endif

}  // namespace leeway::transport
