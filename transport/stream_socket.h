// TCP sockets of a StreamRail, and what it is called by. Plain functions, any thread.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/result.h"
#include "transport/file_descriptor.h"

namespace leeway::transport {

// The address of a rail for its peers:
//
//   offset size
//        0    1  4 or 6: the version of IP
//        1    2  port, little-endian
//        3    8  incarnation, little-endian: random, so a process that comes back at the same
//                place is another
//       11    .  4 or 16 bytes of IP address, as in its header
struct StreamAddress {
  sockaddr_storage at{};
  socklen_t size = 0;
  std::uint64_t incarnation = 0;

  std::string printable() const;  // "tcp://10.0.0.1:40123"
};
std::vector<std::byte> encode(const StreamAddress& address);
std::optional<StreamAddress> decode_stream_address(std::span<const std::byte> bytes);

// At a numeric address of ours. Throws ConfigError.
FileDescriptor listen_at(const std::string& address, std::uint16_t port);
StreamAddress address_of(int listener);  // incarnation 0; throws ConfigError

// On its way from the address `from`, or there already. kResourceExhausted: no descriptors;
// kUnavailable: the way does not exist.
Result<FileDescriptor> connect_to(const StreamAddress& from, const StreamAddress& to);
// What became of it; 0 or errno.
int connect_error(const FileDescriptor& socket) noexcept;

// For a connection of either side: no delay for small frames, and an end to peers that say nothing.
void prepare_stream(const FileDescriptor& socket) noexcept;

}  // namespace leeway::transport
