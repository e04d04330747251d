#include "transport/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "transport/wire.h"

namespace leeway::transport {
namespace {

using wire::Reader;
using wire::Writer;

constexpr std::uint32_t kMagic = 0x3159574C;  // "LWY1"
constexpr std::size_t kHeader = 32;
constexpr std::size_t kMaxRefusedText = 1024;
constexpr std::uint8_t kInitialFlag = 1, kInlineFlag = 2, kChecksumFlag = 4;

// Fixed part of a body, and what each entry adds (layouts in messages.h).
constexpr std::size_t kPushFixed = 13, kPushEntry = 30;
constexpr std::size_t kPushTakenFixed = 12, kPushTakenEntry = 4;
constexpr std::size_t kPullFixed = 25, kPullEntry = 20;
constexpr std::size_t kPulledFixed = 32, kPulledEntry = 12;
constexpr std::size_t kNormsFixed = 12, kNormsEntry = 4 + 2 * 8 * ExactSum::kWords;
constexpr std::size_t kWindow = 16;

std::size_t entries_that_fit(std::size_t message, std::size_t fixed, std::size_t entry) {
  const std::size_t used = kHeader + fixed;
  return message <= used ? 0 : (message - used) / entry;
}

// ---- encoding: one overload a body ------------------------------------------------------------

MessageType type_of(const Push&) { return MessageType::kPush; }
MessageType type_of(const PushTaken&) { return MessageType::kPushTaken; }
MessageType type_of(const Commit& body) { return static_cast<MessageType>(body.ending); }
MessageType type_of(const Committed&) { return MessageType::kCommitted; }
MessageType type_of(const Pull&) { return MessageType::kPull; }
MessageType type_of(const Pulled&) { return MessageType::kPulled; }
MessageType type_of(const Refused&) { return MessageType::kRefused; }
MessageType type_of(const Norms&) { return MessageType::kNorms; }

std::uint32_t count(std::size_t n) { return static_cast<std::uint32_t>(n); }

std::size_t windows_of(const std::shared_ptr<const RemoteMemory>& memory) {
  return memory != nullptr ? memory->size() : 0;
}

void put(Writer& out, const std::shared_ptr<const RemoteMemory>& memory) {
  LEEWAY_CHECK(windows_of(memory) <= kMaxRails);
  out.put(static_cast<std::uint8_t>(windows_of(memory)));
  for (std::size_t i = 0; i < windows_of(memory); ++i) {
    out.put((*memory)[i].address);
    out.put((*memory)[i].key);
  }
}

void put(Writer& out, const Push& body) {
  out.put(body.clock.value());
  put(out, body.memory);
  out.put(count(body.entries.size()));
  for (const Push::Entry& entry : body.entries) {
    out.put(entry.partition.value());
    out.put(entry.scale);
    out.put(entry.offset);
    out.put(entry.bytes);
    out.put(static_cast<std::uint8_t>(entry.codec));
    out.put(static_cast<std::uint8_t>((entry.initial ? kInitialFlag : 0) |
                                      (entry.inlined ? kInlineFlag : 0) |
                                      (entry.checksum ? kChecksumFlag : 0)));
    out.put(entry.checksum.value_or(0));
  }
  out.put(std::span<const std::byte>(body.payload));
}

void put(Writer& out, const PushTaken& body) {
  out.put(body.clock.value());
  out.put(count(body.partitions.size()));
  for (const PartitionId partition : body.partitions) out.put(partition.value());
}

void put(Writer& out, const Commit& body) {
  LEEWAY_CHECK(body.worker_state.size() <= kMaxWorkerState);
  out.put(body.clock.value());
  out.put(body.samples);
  out.put(body.factor);
  out.put(static_cast<std::uint16_t>(body.worker_state.size()));
  out.put(std::span<const std::byte>(body.worker_state));
}

void put(Writer& out, const Committed& body) {
  out.put(body.clock.value());
  out.put(static_cast<std::uint16_t>(body.ending));
}

void put(Writer& out, const Pull& body) {
  out.put(body.clock.value());
  out.put(body.request);
  out.put(body.staleness);
  out.put(body.total);
  put(out, body.memory);
  out.put(count(body.entries.size()));
  for (const Pull::Entry& entry : body.entries) {
    out.put(entry.partition.value());
    out.put(entry.have.value());
    out.put(entry.offset);
  }
}

void put(Writer& out, const Pulled& body) {
  out.put(body.clock.value());
  out.put(body.request);
  out.put(body.slowest.value());
  out.put(body.bound);
  out.put(body.total);
  out.put(count(body.entries.size()));
  for (const Pulled::Entry& entry : body.entries) {
    out.put(entry.partition.value());
    out.put(entry.version.value());
  }
}

void put(Writer& out, const Refused& body) {
  const std::size_t length = std::min(body.text.size(), kMaxRefusedText);
  out.put(static_cast<std::uint16_t>(body.code));
  out.put(static_cast<std::uint16_t>(length));
  out.put(std::as_bytes(std::span(body.text.data(), length)));
}

void put(Writer& out, const ExactSum& sum) {
  for (const std::uint64_t word : sum.words()) out.put(word);
}

void put(Writer& out, const Norms& body) {
  out.put(body.clock.value());
  out.put(count(body.entries.size()));
  for (const Norms::Entry& entry : body.entries) {
    out.put(entry.tensor.value());
    put(out, entry.sums.weights);
    put(out, entry.sums.changes);
  }
}

std::size_t body_size(const Push& b) {
  return kPushFixed + windows_of(b.memory) * kWindow + b.entries.size() * kPushEntry +
         b.payload.size();
}
std::size_t body_size(const PushTaken& b) {
  return kPushTakenFixed + b.partitions.size() * kPushTakenEntry;
}
std::size_t body_size(const Commit& b) { return 18 + b.worker_state.size(); }
std::size_t body_size(const Committed&) { return 10; }
std::size_t body_size(const Pull& b) {
  return kPullFixed + windows_of(b.memory) * kWindow + b.entries.size() * kPullEntry;
}
std::size_t body_size(const Pulled& b) { return kPulledFixed + b.entries.size() * kPulledEntry; }
std::size_t body_size(const Refused& b) { return 4 + std::min(b.text.size(), kMaxRefusedText); }
std::size_t body_size(const Norms& b) { return kNormsFixed + b.entries.size() * kNormsEntry; }

// ---- decoding ---------------------------------------------------------------------------------

template <typename... Args>
tl::unexpected<Error> bad(fmt::format_string<Args...> format, Args&&... args) {
  return fail(Code::kInvalidArgument,
              "malformed message: " + fmt::format(format, std::forward<Args>(args)...));
}

// The entries that follow a fixed part must be exactly the bytes that are left, so a count that
// lies is found before anything is allocated.
bool entries_follow(const Reader& in, std::uint32_t n, std::size_t entry) {
  return in.ok() && in.left() == static_cast<std::uint64_t>(n) * entry;
}

// Empty, and `in` not ok, when it is cut short or of more rails than there can be.
std::shared_ptr<const RemoteMemory> get_memory(Reader& in) {
  const auto n = in.get<std::uint8_t>();
  const bool good = n <= kMaxRails && n * kWindow <= in.left();
  auto memory = std::make_shared<RemoteMemory>(good ? n : 0);
  if (!good) in.take(in.left() + 1);
  for (Window& window : *memory) {
    window.address = in.get<std::uint64_t>();
    window.key = in.get<std::uint64_t>();
  }
  return memory;
}

Result<Body> get_push(Reader& in) {
  Push body;
  body.clock = Clock(in.get<std::uint64_t>());
  body.memory = get_memory(in);
  const auto n = in.get<std::uint32_t>();
  if (!in.ok() || in.left() / kPushEntry < n)
    return bad("PUSH of {} entries has another length", n);
  body.entries.reserve(n);
  std::uint64_t inlined = 0;
  for (std::uint32_t i = 0; i < n; ++i) {
    Push::Entry entry;
    entry.partition = PartitionId(in.get<std::uint32_t>());
    entry.scale = in.get<float>();
    entry.offset = in.get<std::uint64_t>();
    entry.bytes = in.get<std::uint64_t>();
    const auto codec = in.get<std::uint8_t>();
    const auto flags = in.get<std::uint8_t>();
    if (!std::isfinite(entry.scale) || entry.scale <= 0)
      return bad("PUSH of partition {} with scale {}, not a positive finite number",
                 entry.partition.value(), entry.scale);
    if (!is_codec(codec))
      return bad("PUSH of partition {} with unknown codec {}", entry.partition.value(), codec);
    const auto checksum = in.get<std::uint32_t>();
    const auto kind = flags & ~kChecksumFlag;
    if (kind > kInlineFlag || (flags != kind) < (checksum != 0))
      return bad("PUSH of partition {} with unknown flags {:#x}", entry.partition.value(), flags);
    entry.codec = static_cast<Codec>(codec);
    entry.initial = kind == kInitialFlag;
    entry.inlined = kind == kInlineFlag;
    if (flags != kind) entry.checksum = checksum;
    // More than is there at once, so that the sum stays within its range.
    if (entry.inlined && (entry.bytes > in.left() || (inlined += entry.bytes) > in.left()))
      return bad("PUSH of partition {} lacks its {} bytes", entry.partition.value(), entry.bytes);
    body.entries.push_back(entry);
  }
  if (in.left() != inlined)
    return bad("PUSH with {} bytes of payload, its entries have {}", in.left(), inlined);
  const auto payload = in.take(inlined);
  body.payload.assign(payload.begin(), payload.end());
  return body;
}

Result<Body> get_push_taken(Reader& in) {
  PushTaken body;
  body.clock = Clock(in.get<std::uint64_t>());
  const auto n = in.get<std::uint32_t>();
  if (!entries_follow(in, n, kPushTakenEntry))
    return bad("PUSH_TAKEN of {} entries has another length", n);
  body.partitions.reserve(n);
  for (std::uint32_t i = 0; i < n; ++i) body.partitions.emplace_back(in.get<std::uint32_t>());
  return body;
}

Result<Body> get_commit(Reader& in, MessageType type) {
  Commit body;
  body.ending = static_cast<Ending>(type);
  body.clock = Clock(in.get<std::uint64_t>());
  body.samples = in.get<std::uint32_t>();
  body.factor = in.get<float>();
  const auto n = in.get<std::uint16_t>();
  if (n > kMaxWorkerState)
    return bad("COMMIT with {} bytes of worker state, more than {}", n, kMaxWorkerState);
  if (!entries_follow(in, n, 1)) return bad("COMMIT with {} bytes of state has another length", n);
  if (!(body.factor > 0 && body.factor <= 1)) return bad("COMMIT with a factor of {}", body.factor);
  const auto state = in.take(n);
  body.worker_state.assign(state.begin(), state.end());
  return body;
}

Result<Body> get_committed(Reader& in) {
  Committed body;
  body.clock = Clock(in.get<std::uint64_t>());
  const auto type = in.get<std::uint16_t>();
  if (!in.ok() || in.left() != 0) return bad("COMMITTED has another length");
  if (type < static_cast<std::uint16_t>(Ending::kCommit) ||
      type > static_cast<std::uint16_t>(Ending::kInitial))
    return bad("COMMITTED answers type {}, which ends no step", type);
  body.ending = static_cast<Ending>(type);
  return body;
}

Result<Body> get_pull(Reader& in) {
  Pull body;
  body.clock = Clock(in.get<std::uint64_t>());
  body.request = in.get<std::uint32_t>();
  body.staleness = in.get<std::uint32_t>();
  body.total = in.get<std::uint32_t>();
  body.memory = get_memory(in);
  const auto n = in.get<std::uint32_t>();
  if (!entries_follow(in, n, kPullEntry)) return bad("PULL of {} entries has another length", n);
  if (body.total < n) return bad("PULL of {} entries says that the request has {}", n, body.total);
  body.entries.reserve(n);
  for (std::uint32_t i = 0; i < n; ++i) {
    Pull::Entry entry;
    entry.partition = PartitionId(in.get<std::uint32_t>());
    entry.have = Version(in.get<std::uint64_t>());
    entry.offset = in.get<std::uint64_t>();
    body.entries.push_back(entry);
  }
  return body;
}

Result<Body> get_pulled(Reader& in) {
  Pulled body;
  body.clock = Clock(in.get<std::uint64_t>());
  body.request = in.get<std::uint32_t>();
  body.slowest = Clock(in.get<std::uint64_t>());
  body.bound = in.get<std::uint32_t>();
  body.total = in.get<std::uint32_t>();
  const auto n = in.get<std::uint32_t>();
  if (!entries_follow(in, n, kPulledEntry))
    return bad("PULLED of {} entries has another length", n);
  if (body.total < n) return bad("PULLED of {} entries says that the answer has {}", n, body.total);
  body.entries.reserve(n);
  for (std::uint32_t i = 0; i < n; ++i) {
    Pulled::Entry entry;
    entry.partition = PartitionId(in.get<std::uint32_t>());
    entry.version = Version(in.get<std::uint64_t>());
    body.entries.push_back(entry);
  }
  return body;
}

Result<Body> get_refused(Reader& in) {
  Refused body;
  const auto code = in.get<std::uint16_t>();
  const auto n = in.get<std::uint16_t>();
  if (code > static_cast<std::uint16_t>(Code::kInternal)) return bad("REFUSED with code {}", code);
  if (n > kMaxRefusedText || !entries_follow(in, n, 1))
    return bad("REFUSED with {} bytes of text has another length", n);
  body.code = static_cast<Code>(code);
  for (const std::byte byte : in.take(n)) {
    // It goes into log lines: one line, nothing that a terminal obeys.
    const char c = static_cast<char>(byte);
    body.text.push_back(static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? ' ' : c);
  }
  return body;
}

ExactSum get_sum(Reader& in) {
  ExactSum::Words words;
  for (std::uint64_t& word : words) word = in.get<std::uint64_t>();
  return ExactSum(words);
}

Result<Body> get_norms(Reader& in) {
  Norms body;
  body.clock = Clock(in.get<std::uint64_t>());
  const auto n = in.get<std::uint32_t>();
  if (!entries_follow(in, n, kNormsEntry)) return bad("NORMS of {} entries has another length", n);
  body.entries.reserve(n);
  for (std::uint32_t i = 0; i < n; ++i) {
    Norms::Entry entry;
    entry.tensor = TensorId(in.get<std::uint32_t>());
    entry.sums.weights = get_sum(in);
    entry.sums.changes = get_sum(in);
    body.entries.push_back(entry);
  }
  return body;
}

Result<Body> get_body(Reader& in, std::uint16_t type) {
  switch (static_cast<MessageType>(type)) {
    case MessageType::kPush:
      return get_push(in);
    case MessageType::kPushTaken:
      return get_push_taken(in);
    case MessageType::kCommit:
    case MessageType::kAbandon:
    case MessageType::kInitial:
      return get_commit(in, static_cast<MessageType>(type));
    case MessageType::kCommitted:
      return get_committed(in);
    case MessageType::kPull:
      return get_pull(in);
    case MessageType::kPulled:
      return get_pulled(in);
    case MessageType::kRefused:
      return get_refused(in);
    case MessageType::kNorms:
      return get_norms(in);
  }
  return bad("unknown type {}", type);
}

}  // namespace

std::vector<std::byte> encode(const Sender& sender, const Body& body) {
  return std::visit(
      [&](const auto& b) {
        const std::size_t size = body_size(b);
        Writer out(kHeader + size);
        out.put(kMagic);
        out.put(kWireVersion);
        out.put(static_cast<std::uint16_t>(type_of(b)));
        out.put(sender.job);
        out.put(sender.incarnation.value());
        out.put(sender.id);
        out.put(count(size));
        put(out, b);
        return out.take();
      },
      body);
}

Result<Message> decode_next(std::span<const std::byte>& frame) {
  const auto bytes = std::exchange(frame, {});
  Reader in(bytes);
  Message message;
  const auto magic = in.get<std::uint32_t>();
  const auto version = in.get<std::uint16_t>();
  const auto type = in.get<std::uint16_t>();
  message.sender.job = in.get<std::uint64_t>();
  message.sender.incarnation = Incarnation(in.get<std::uint64_t>());
  message.sender.id = in.get<std::uint32_t>();
  const auto length = in.get<std::uint32_t>();
  if (!in.ok()) return bad("{} bytes, less than a header", bytes.size());
  if (magic != kMagic)
    return bad("it does not start with LWY1: the sender is not a Leeway process");
  if (version != kWireVersion)
    return fail(Code::kUnsupported,
                fmt::format("the peer speaks wire version {}, this process {}: use one release of "
                            "Leeway for the whole job",
                            version, kWireVersion));
  if (length > in.left())
    return bad("its header promises {} bytes of body, {} follow", length, in.left());
  Reader content(in.take(length));
  auto body = get_body(content, type);
  if (!body) return tl::unexpected(std::move(body).error());
  message.body = std::move(*body);
  frame = bytes.subspan(kHeader + length);
  return message;
}

Result<Message> decode(std::span<const std::byte> bytes) {
  auto message = decode_next(bytes);
  if (message && !bytes.empty()) return bad("{} bytes follow it", bytes.size());
  return message;
}

std::size_t max_push_entries(std::size_t max_message, std::size_t rails) {
  return entries_that_fit(max_message, kPushFixed + rails * kWindow, kPushEntry);
}
std::size_t inline_room(std::size_t max_message, std::size_t rails, std::size_t entries) {
  const std::size_t used = kHeader + kPushFixed + rails * kWindow + entries * kPushEntry;
  return max_message <= used ? 0 : max_message - used;
}
std::size_t max_push_taken_entries(std::size_t max_message) {
  return entries_that_fit(max_message, kPushTakenFixed, kPushTakenEntry);
}
std::size_t max_pull_entries(std::size_t max_message, std::size_t rails) {
  return entries_that_fit(max_message, kPullFixed + rails * kWindow, kPullEntry);
}
std::size_t max_pulled_entries(std::size_t max_message) {
  return entries_that_fit(max_message, kPulledFixed, kPulledEntry);
}
std::size_t max_norms_entries(std::size_t max_message) {
  return entries_that_fit(max_message, kNormsFixed, kNormsEntry);
}

}  // namespace leeway::transport
