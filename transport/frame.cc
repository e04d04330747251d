#include "transport/frame.h"

#include <fmt/format.h>

#include "transport/messages.h"
#include "transport/wire.h"

namespace leeway::transport {
namespace {

constexpr std::uint16_t kMagic = 0x464C;  // "LF"
constexpr std::size_t kGrantBytes = 48, kWrittenBytes = 10;

FrameKind kind_of(const UserMessage&) { return FrameKind::kMessage; }
FrameKind kind_of(const Grant&) { return FrameKind::kGrant; }
FrameKind kind_of(const Written&) { return FrameKind::kWritten; }
FrameKind kind_of(const Ping&) { return FrameKind::kPing; }

void put(wire::Writer& out, const UserMessage& body) { out.put(body.bytes); }
void put(wire::Writer& out, const Grant& body) {
  out.put(body.number);
  for (const Window& window : {body.source, body.target}) {
    out.put(window.address);
    out.put(window.key);
  }
  out.put(body.bytes);
  out.put(body.answer_to);
}
void put(wire::Writer& out, const Written& body) {
  out.put(body.number);
  out.put(static_cast<std::uint16_t>(body.error ? static_cast<unsigned>(*body.error) + 1 : 0));
}
void put(wire::Writer&, const Ping&) {}

std::size_t size_of(const UserMessage& body) { return body.bytes.size(); }
std::size_t size_of(const Grant& body) { return kGrantBytes + body.answer_to.size(); }
std::size_t size_of(const Written&) { return kWrittenBytes; }
std::size_t size_of(const Ping&) { return 0; }

}  // namespace

std::vector<std::byte> encode(const Frame& frame) {
  return std::visit(
      [&](const auto& body) {
        wire::Writer out(kFrameHeader + size_of(body));
        out.put(kMagic);
        out.put(static_cast<std::uint8_t>(kWireVersion));
        out.put(static_cast<std::uint8_t>(kind_of(body)));
        out.put(frame.sender);
        put(out, body);
        return out.take();
      },
      frame.body);
}

Result<Frame> decode_frame(std::span<const std::byte> bytes) {
  const auto malformed = [&](std::string_view what) {
    return fail(Code::kInvalidArgument,
                fmt::format("a malformed frame of {} bytes: {}", bytes.size(), what));
  };
  wire::Reader in(bytes);
  const auto magic = in.get<std::uint16_t>();
  const auto version = in.get<std::uint8_t>();
  const auto kind = in.get<std::uint8_t>();
  Frame frame{.sender = in.get<std::uint64_t>()};
  if (!in.ok() || magic != kMagic) return malformed("the sender is not a Leeway process");
  if (version != kWireVersion)
    return fail(Code::kUnsupported,
                fmt::format("a peer speaks wire version {}, this process {}: use one release of "
                            "Leeway for the whole job",
                            version, kWireVersion));
  switch (static_cast<FrameKind>(kind)) {
    case FrameKind::kMessage:
      frame.body = UserMessage{in.take(in.left())};
      return frame;
    case FrameKind::kGrant: {
      if (in.left() < kGrantBytes) return malformed("GRANT has another length");
      Grant grant{.number = in.get<std::uint64_t>()};
      for (Window* window : {&grant.source, &grant.target}) {
        window->address = in.get<std::uint64_t>();
        window->key = in.get<std::uint64_t>();
      }
      grant.bytes = in.get<std::uint64_t>();
      grant.answer_to = in.take(in.left());
      frame.body = grant;
      return frame;
    }
    case FrameKind::kWritten: {
      if (in.left() != kWrittenBytes) return malformed("WRITTEN has another length");
      Written written{.number = in.get<std::uint64_t>()};
      const auto code = in.get<std::uint16_t>();
      if (code > static_cast<unsigned>(Code::kInternal) + 1) return malformed("unknown code");
      if (code != 0) written.error = static_cast<Code>(code - 1);
      frame.body = written;
      return frame;
    }
    case FrameKind::kPing:
      if (in.left() != 0) return malformed("PING has another length");
      frame.body = Ping{};
      return frame;
  }
  return malformed("unknown kind");
}

}  // namespace leeway::transport
