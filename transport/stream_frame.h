// What goes over a connection of a StreamRail. A core without I/O: plain functions, any thread.
//
// Frames follow each other without a gap. Little-endian:
//
//   offset size
//        0    1  kind
//        1    1  flags: 1 = the last chunk of a write; else 0
//        2    2  0
//        4    4  size of the payload
//        8  8 n  n words, by kind
//        .    .  payload
//
//   kind        from      words                           payload
//   1 kHello    sender    magic, incarnation, version     -
//   2 kWelcome  receiver                                  -
//   3 kMessage  sender                                    the message, kStreamMessage at most
//   4 kRead     sender    id, key, offset, length         -
//   5 kData     receiver  id                              the next bytes of that read
//   6 kWrite    sender    id, key, offset                 bytes for there
//   7 kWritten  receiver  id                              -
//   8 kRefused  receiver  id (0: of the hello), reason    -
//
// "Sender" is who connected: it asks, and names its transfers by ids, 1 and up, that the receiver
// gives back. The first frame is kHello, and nothing else goes out before kWelcome. A read or write
// goes in chunks of kStreamChunk at most, with whatever else there is to say between them; those of
// one read come in order; where the memory goes meanwhile kRefused ends it, or the connection does
// before its last byte. kWritten says that all chunks of a write are in the memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace leeway::transport {

inline constexpr std::uint64_t kStreamMagic = 0x7063745f7977656c;  // "lewy_tcp"
inline constexpr std::uint64_t kStreamVersion = 1;
inline constexpr std::size_t kStreamMessage = 8192;
inline constexpr std::size_t kStreamChunk = std::size_t{512} << 10;

enum class StreamKind : std::uint8_t {
  kHello = 1,
  kWelcome,
  kMessage,
  kRead,
  kData,
  kWrite,
  kWritten,
  kRefused,
};

enum class StreamRefusal : std::uint64_t {
  kVersion = 1,      // of another release
  kIncarnation = 2,  // the process that was meant is gone, another one listens there
  kMemory = 3,       // no such memory, or not so much of it
};

struct StreamHead {
  StreamKind kind{};
  bool last = false;
  std::uint32_t size = 0;
  std::array<std::uint64_t, 4> words{};

  friend bool operator==(const StreamHead&, const StreamHead&) = default;
};

class EncodedHead {
 public:
  static constexpr std::size_t kLongest = 40;
  explicit EncodedHead(const StreamHead& head) noexcept;
  std::span<const std::byte> bytes() const noexcept { return std::span(bytes_).first(size_); }

 private:
  std::array<std::byte, kLongest> bytes_;
  std::size_t size_;
};

struct DecodedHead {
  enum class What {
    kWhole,
    kShort,  // the rest has not come yet
    kWrong,
  };
  What what = What::kShort;
  StreamHead head;
  std::size_t size = 0;  // of the head, when it is whole
};
// Of the first bytes. Sizes of payloads are within their limits.
DecodedHead decode_head(std::span<const std::byte> bytes) noexcept;

}  // namespace leeway::transport
