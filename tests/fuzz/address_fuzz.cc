// libFuzzer target: whatever the bytes, decode_address() returns; what it accepts, encode() gives
// back, and the pairing of rails names rails that exist.
#include <algorithm>
#include <cstdlib>

#include "transport/address.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace leeway::transport;
  static const EndpointAddress ours{
      .id = 1,
      .host = 7,
      .rails = {{"shm", 0, true, {}}, {"tcp", 100, true, {}}, {"tcp", 200, false, {}}}};
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto theirs = decode_address(bytes);
  if (!theirs) return 0;
  if (!std::ranges::equal(encode(*theirs), bytes)) std::abort();
  for (const RailPair& pair : pair_rails(ours, *theirs))
    if (pair.ours >= ours.rails.size() || pair.theirs >= theirs->rails.size()) std::abort();
  return 0;
}
