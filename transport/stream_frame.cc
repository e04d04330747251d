#include "transport/stream_frame.h"

#include <cstring>
#include <optional>

namespace leeway::transport {
namespace {

constexpr std::size_t kPrefix = 8;

struct Shape {
  std::size_t words;
  std::size_t longest;  // payload
};

constexpr std::optional<Shape> shape_of(StreamKind kind) noexcept {
  switch (kind) {
    case StreamKind::kHello:
      return Shape{3, 0};
    case StreamKind::kWelcome:
      return Shape{0, 0};
    case StreamKind::kMessage:
      return Shape{0, kStreamMessage};
    case StreamKind::kRead:
      return Shape{4, 0};
    case StreamKind::kData:
      return Shape{1, kStreamChunk};
    case StreamKind::kWrite:
      return Shape{3, kStreamChunk};
    case StreamKind::kWritten:
      return Shape{1, 0};
    case StreamKind::kRefused:
      return Shape{2, 0};
  }
  return std::nullopt;
}

template <typename T>
void put(std::byte* to, T value) noexcept {
  for (std::size_t i = 0; i < sizeof(T); ++i) to[i] = static_cast<std::byte>(value >> (8 * i));
}

template <typename T>
T get(const std::byte* from) noexcept {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value |= static_cast<T>(static_cast<T>(from[i]) << (8 * i));
  return value;
}

}  // namespace

EncodedHead::EncodedHead(const StreamHead& head) noexcept {
  const std::size_t words = shape_of(head.kind)->words;
  put(bytes_.data(), static_cast<std::uint32_t>(head.kind) | (head.last ? 1u << 8 : 0));
  put(bytes_.data() + 4, head.size);
  for (std::size_t i = 0; i < words; ++i) put(bytes_.data() + kPrefix + 8 * i, head.words[i]);
  size_ = kPrefix + 8 * words;
}

DecodedHead decode_head(std::span<const std::byte> bytes) noexcept {
  using What = DecodedHead::What;
  DecodedHead decoded;
  if (bytes.size() < kPrefix) return decoded;
  StreamHead& head = decoded.head;
  head.kind = static_cast<StreamKind>(bytes[0]);
  head.size = get<std::uint32_t>(bytes.data() + 4);
  const auto shape = shape_of(head.kind);
  const auto rest = get<std::uint32_t>(bytes.data()) >> 8;
  head.last = rest == 1;
  if (!shape || rest > (head.kind == StreamKind::kWrite ? 1u : 0u) || head.size > shape->longest) {
    decoded.what = What::kWrong;
    return decoded;
  }
  if (bytes.size() < kPrefix + 8 * shape->words) return decoded;
  for (std::size_t i = 0; i < shape->words; ++i)
    head.words[i] = get<std::uint64_t>(bytes.data() + kPrefix + 8 * i);
  decoded.size = kPrefix + 8 * shape->words;
  decoded.what = What::kWhole;
  return decoded;
}

}  // namespace leeway::transport
