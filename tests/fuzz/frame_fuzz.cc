// libFuzzer target: whatever the bytes, decode_frame() returns; what it accepts, encode() gives
// back.
#include <algorithm>
#include <cstdlib>

#include "transport/frame.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace leeway::transport;
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto frame = decode_frame(bytes);
  if (frame && !std::ranges::equal(encode(*frame), bytes)) std::abort();
  return 0;
}
