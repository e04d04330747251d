// libFuzzer target: whatever the bytes, decode() returns; what it accepts, encode() gives back.
// (The text of a refusal is cleaned of control characters, so that one may differ.)
//
// Built where the compiler is clang:  CXX=clang++ meson setup build-fuzz -Db_lundef=false
//                                     ninja -C build-fuzz tests/fuzz/messages_fuzz
//                                     build-fuzz/tests/fuzz/messages_fuzz
//                                     tests/fuzz/messages_corpus
#include <algorithm>
#include <cstdlib>

#include "transport/messages.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace leeway::transport;
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto message = decode(bytes);
  if (!message || std::holds_alternative<Refused>(message->body)) return 0;
  if (!std::ranges::equal(encode(message->sender, message->body), bytes)) std::abort();
  return 0;
}
