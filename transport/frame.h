// What endpoints say to each other around the messages of their users.
//
// All integers little-endian, no padding. Every frame starts with
//
//   offset size
//        0    2  magic "LF"
//        2    1  version (kWireVersion)
//        3    1  kind (FrameKind)
//        4    8  id of the sending endpoint (address.h)
//
// and then
//
//   MESSAGE   the bytes of one message of the user's
//   GRANT     8 number | 8 source address | 8 source key | 8 target address | 8 target key
//             | 8 bytes | n bytes, the sender's own address on the rail that the frame comes by
//             "write these bytes of your memory into mine": how a read is done where a write is
//             faster (ProviderTraits::granted_reads); addresses and keys are of that rail, and the
//             write goes back by it
//   WRITTEN   8 number | 2 code (Code + 1; 0 = done)
//   PING      nothing: asks the provider whether the peer is there
//
// Decoders bound everything by the bytes that are there. Plain values, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "common/result.h"
#include "transport/endpoint.h"

namespace leeway::transport {

inline constexpr std::size_t kFrameHeader = 12;
enum class FrameKind : std::uint8_t { kMessage = 1, kGrant, kWritten, kPing };

struct UserMessage {
  std::span<const std::byte> bytes;  // of the frame
};
struct Grant {
  std::uint64_t number = 0;
  Window source;  // at its first byte
  Window target;
  std::uint64_t bytes = 0;
  std::span<const std::byte> answer_to;  // lives as long as the frame
};
struct Written {
  std::uint64_t number = 0;
  std::optional<Code> error;
};
struct Ping {};

struct Frame {
  std::uint64_t sender = 0;
  std::variant<UserMessage, Grant, Written, Ping> body;
};

std::vector<std::byte> encode(const Frame& frame);
// Lives as long as `bytes`.
Result<Frame> decode_frame(std::span<const std::byte> bytes);

}  // namespace leeway::transport
