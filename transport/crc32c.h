// CRC32C (Castagnoli, reflected polynomial 0x82F63B78; that of iSCSI, RFC 3720) of a payload.
//
// With the processor's instruction where it has one, three streams at a time, about as fast as
// memory is read. Called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace leeway::transport {

std::uint32_t crc32c(std::span<const std::byte> bytes);

// The same, a byte at a time: the reference for tests, and for processors without the instruction.
std::uint32_t crc32c_by_table(std::span<const std::byte> bytes);

}  // namespace leeway::transport
