// libFuzzer target: whatever the bytes, decode_next() returns and comes to an end; what it
// accepts, encode() gives back.
// (The text of a refusal is cleaned of control characters, so that one may differ.)
#include <algorithm>
#include <cstdlib>

#include "transport/messages.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace leeway::transport;
  std::span<const std::byte> frame = std::as_bytes(std::span(data, size));
  while (!frame.empty()) {
    const auto before = frame;
    const auto message = decode_next(frame);
    if (!message) {
      if (!frame.empty()) std::abort();
      break;
    }
    if (std::holds_alternative<Refused>(message->body)) continue;
    const auto bytes = before.first(before.size() - frame.size());
    if (!std::ranges::equal(encode(message->sender, message->body), bytes)) std::abort();
  }
  return 0;
}
