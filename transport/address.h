// The address of an endpoint: what its peers get from the scheduler, opaque to everybody else.
//
// All integers little-endian, no padding.
//
//   offset size
//        0    4  magic "LWYA"
//        4    2  version (kWireVersion): a peer of another one is refused here, by its number
//        6    2  number of rails
//        8    8  id of the endpoint, random: a process that comes back at the same place is another
//       16    8  host: equal ids mean that both can share memory; 0 = not known
//       24    rails * { 1 n | n bytes of family | 4 rate in Mbit/s, 0 = not known
//                       | 1 near (0 or 1) | 2 n | n bytes of the rail's own address }
//
// Plain values, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/result.h"

namespace leeway::transport {

struct RailAddress {
  std::string family;  // efa | verbs | tcp | shm
  std::uint32_t megabits = 0;
  bool near = true;  // to what its process computes on
  std::vector<std::byte> raw;
};

struct EndpointAddress {
  std::uint64_t id = 0;
  std::uint64_t host = 0;
  std::vector<RailAddress> rails;
};

std::vector<std::byte> encode(const EndpointAddress& address);
// kInvalidArgument: it is no address; kUnsupported: of another release.
Result<EndpointAddress> decode_address(std::span<const std::byte> bytes);

// Which rail of ours meets which of a peer's.
struct RailPair {
  std::size_t ours = 0, theirs = 0;
  // Links of the lowest number are used, the others when all of those have failed.
  int preference = 0;
};
// Rails of one family meet in their order, ours going round when the peer has fewer. Shared memory
// comes first, and only on one host; then rails that are near at both ends.
std::vector<RailPair> pair_rails(const EndpointAddress& ours, const EndpointAddress& theirs);

}  // namespace leeway::transport
