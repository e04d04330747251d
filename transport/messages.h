// The wire messages of push and pull, and of servers to each other: layout, encoder, decoder.
//
// All integers little-endian, no padding, floats as their IEEE bits. What travels is a frame, one
// or several messages one after the other, in which they keep their order. Every message starts
// with
//
//   offset size
//        0    4  magic "LWY1"
//        4    2  version (kWireVersion)
//        6    2  type (MessageType)
//        8    8  job: random number of the job; a message of another job is refused
//       16    8  incarnation of the sender
//       24    4  sender's id: worker rank or server number
//       28    4  body bytes that follow
//
// and the bodies are
//
//   PUSH        8 clock | memory | 4 n | n * { 4 partition, 4 scale (f32), 8 offset, 8 bytes,
//                                              1 codec (common/codec.h), 1 flags, 4 CRC32C } |
//                                              inline entries
//               flags: 1 initial values, 2 inline: the payload is also in this message, 4 with
//               CRC32C of the payload (else 0)
//   PUSH_TAKEN  8 clock | 4 n | n * { 4 partition }
//               clock: of the push; kInitialValues for initial values, since step 0 has clock 0 too
//   COMMIT      8 clock | 4 samples | 4 factor (f32) | 2 n | n bytes of worker state
//               factor: the step's gradients count so many times, 0 < factor <= 1
//   ABANDON     as COMMIT: the step has a non-finite gradient, drop it and advance the clock
//   INITIAL     as COMMIT: the pushes flagged initial are complete; no step, clock 0
//   COMMITTED   8 clock | 2 type              (answers COMMIT, ABANDON and INITIAL)
//   PULL        8 clock | 4 request | 4 staleness | 4 total entries of the request | memory
//               | 4 n | n * { 4 partition, 8 have (version), 8 offset }
//               staleness: the bound for this pull; kUnboundedStaleness = inf
//   PULLED      8 clock | 4 request | 8 slowest | 4 bound | 4 total entries
//               | 4 n | n * { 4 partition, 8 version }
//               slowest: smallest clock of a live worker whose steps are in (with a quorum: clocks
//               that are in); bound: the one in force, kUnboundedStaleness = inf
//   REFUSED     2 code (Code) | 2 n | n bytes of text
//   NORMS       8 clock | 4 n | n * { 4 tensor, 80 weights, 80 changes }
//               from a server to another that holds parts of these tensors, too (lamb): the sums of
//               its parts in the update of that clock; each ten words of an ExactSum
//               (common/exact_sum.h), the lowest first
//
//   memory = 1 n | n * { 8 address, 8 key }
//            the windows of the sender's memory, one for each of its rails, in which the offsets of
//            the entries are
//
// A push or pull of more entries than fit one message goes in several; PULL and PULLED carry the
// total, so that the receiver knows when it has all. Decoders bound every count by the bytes that
// are there: nothing that a peer sends makes this process read beyond, allocate more than the
// message is long, or abort.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "common/codec.h"
#include "common/exact_sum.h"
#include "common/ids.h"
#include "common/result.h"
#include "transport/endpoint.h"

namespace leeway::transport {

inline constexpr std::uint16_t kWireVersion = 7;
inline constexpr std::uint32_t kUnboundedStaleness = UINT32_MAX;
inline constexpr std::size_t kMaxWorkerState = 512;

enum class MessageType : std::uint16_t {
  kPush = 1,
  kPushTaken,
  kCommit,
  kAbandon,
  kInitial,
  kCommitted,
  kPull,
  kPulled,
  kRefused,
  kNorms,
};

// How a step ended.
enum class Ending : std::uint16_t { kCommit = 3, kAbandon = 4, kInitial = 5 };

using leeway::Codec;  // its values are those of the wire

struct Sender {
  std::uint64_t job = 0;
  Incarnation incarnation;
  std::uint32_t id = 0;
};

struct Push {
  struct Entry {
    PartitionId partition;
    float scale = 1;           // the gradient was multiplied by this; a positive finite number
    std::uint64_t offset = 0;  // in `memory`
    std::uint64_t bytes = 0;
    Codec codec = Codec::kF16;
    bool initial = false;                   // these are initial weights (kF32), not a gradient
    bool inlined = false;                   // its bytes are also in `payload`
    std::optional<std::uint32_t> checksum;  // CRC32C of the payload
  };
  Clock clock;
  std::shared_ptr<const RemoteMemory> memory;  // not null once decoded
  std::vector<Entry> entries;
  std::vector<std::byte> payload;  // of the inlined entries, in their order
};
inline constexpr Clock kInitialValues{UINT64_MAX};

struct PushTaken {
  Clock clock;
  std::vector<PartitionId> partitions;
};
struct Commit {
  Clock clock;  // the step that ends: the worker's clock before it
  Ending ending = Ending::kCommit;
  std::uint32_t samples = 0;
  std::vector<std::byte> worker_state;  // opaque; goes into checkpoints at this clock
  float factor = 1;                     // below 1: the gradient was clipped
};
struct Committed {
  Clock clock;
  Ending ending = Ending::kCommit;
};
struct Pull {
  struct Entry {
    PartitionId partition;
    Version have;              // 0 = nothing
    std::uint64_t offset = 0;  // in `memory`
  };
  Clock clock;  // of the step that the worker is about to compute
  std::uint32_t request = 0;
  std::uint32_t staleness = 0;
  std::uint32_t total = 0;
  std::shared_ptr<const RemoteMemory> memory;  // not null once decoded
  std::vector<Entry> entries;
};
struct Pulled {
  struct Entry {
    PartitionId partition;
    Version version;
  };
  Clock clock;
  std::uint32_t request = 0;
  Clock slowest;
  std::uint32_t bound = 0;
  std::uint32_t total = 0;
  std::vector<Entry> entries;
};
struct Refused {
  Code code = Code::kRefused;
  std::string text;
};

struct Norms {
  struct Entry {
    TensorId tensor;
    NormSums sums;
  };
  Clock clock;
  std::vector<Entry> entries;
};

using Body = std::variant<Push, PushTaken, Commit, Committed, Pull, Pulled, Refused, Norms>;
struct Message {
  Sender sender;
  Body body;
};

// The encoded length never exceeds `max_entries(...)`'s promise: split first.
std::vector<std::byte> encode(const Sender& sender, const Body& body);
// The first message of the frame, which is shorter by it afterwards, and empty after an error. For
// a handler: while (!frame.empty()) ...
Result<Message> decode_next(std::span<const std::byte>& frame);
// Of a frame of one.
Result<Message> decode(std::span<const std::byte> bytes);

// How many entries of a Push / PushTaken / Pull / Pulled / Norms fit a message of `max_message`
// bytes, when the memory has `rails` windows.
std::size_t max_push_entries(std::size_t max_message, std::size_t rails);
// How many bytes of payload fit with them.
std::size_t inline_room(std::size_t max_message, std::size_t rails, std::size_t entries);
std::size_t max_push_taken_entries(std::size_t max_message);
std::size_t max_pull_entries(std::size_t max_message, std::size_t rails);
std::size_t max_pulled_entries(std::size_t max_message);
std::size_t max_norms_entries(std::size_t max_message);

}  // namespace leeway::transport
