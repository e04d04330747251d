#include "transport/address.h"

#include <fmt/format.h>

#include <algorithm>

#include "transport/endpoint.h"
#include "transport/messages.h"
#include "transport/wire.h"

namespace leeway::transport {
namespace {

constexpr std::uint32_t kMagic = 0x4159574C;  // "LWYA"
constexpr std::size_t kMaxFamily = 16, kMaxRaw = 1024;

}  // namespace

std::vector<std::byte> encode(const EndpointAddress& address) {
  wire::Writer out(256);
  out.put(kMagic);
  out.put(kWireVersion);
  out.put(static_cast<std::uint16_t>(address.rails.size()));
  out.put(address.id);
  out.put(address.host);
  for (const RailAddress& rail : address.rails) {
    LEEWAY_CHECK(rail.family.size() <= kMaxFamily && rail.raw.size() <= kMaxRaw);
    out.put(static_cast<std::uint8_t>(rail.family.size()));
    out.put(std::as_bytes(std::span(rail.family)));
    out.put(rail.megabits);
    out.put(static_cast<std::uint8_t>(rail.near ? 1 : 0));
    out.put(static_cast<std::uint16_t>(rail.raw.size()));
    out.put(std::span<const std::byte>(rail.raw));
  }
  return out.take();
}

Result<EndpointAddress> decode_address(std::span<const std::byte> bytes) {
  const auto malformed = [&] {
    return fail(Code::kInvalidArgument,
                fmt::format("{} bytes that are no endpoint's address", bytes.size()));
  };
  wire::Reader in(bytes);
  const auto magic = in.get<std::uint32_t>();
  const auto version = in.get<std::uint16_t>();
  const auto rails = in.get<std::uint16_t>();
  if (!in.ok() || magic != kMagic) return malformed();
  if (version != kWireVersion)
    return fail(Code::kUnsupported,
                fmt::format("the peer speaks wire version {}, this process {}: use one release of "
                            "Leeway for the whole job",
                            version, kWireVersion));
  EndpointAddress address;
  address.id = in.get<std::uint64_t>();
  address.host = in.get<std::uint64_t>();
  if (rails == 0 || rails > kMaxRails) return malformed();
  for (std::size_t i = 0; i < rails; ++i) {
    RailAddress& rail = address.rails.emplace_back();
    const auto family_length = in.get<std::uint8_t>();
    if (family_length > kMaxFamily) return malformed();
    for (const std::byte byte : in.take(family_length)) {
      const char c = static_cast<char>(byte);
      if (c < 'a' || c > 'z') return malformed();
      rail.family.push_back(c);
    }
    rail.megabits = in.get<std::uint32_t>();
    const auto near = in.get<std::uint8_t>();
    if (near > 1) return malformed();
    rail.near = near == 1;
    const auto raw_length = in.get<std::uint16_t>();
    if (raw_length > kMaxRaw) return malformed();
    const auto raw = in.take(raw_length);
    rail.raw.assign(raw.begin(), raw.end());
  }
  if (!in.ok() || in.left() != 0) return malformed();
  return address;
}

std::vector<RailPair> pair_rails(const EndpointAddress& ours, const EndpointAddress& theirs) {
  std::vector<RailPair> pairs;
  for (std::size_t i = 0; i < ours.rails.size(); ++i) {
    const std::string& family = ours.rails[i].family;
    const bool shared = family == "shm";
    if (shared && ours.host != theirs.host) continue;
    std::vector<std::size_t> of_family;
    for (std::size_t j = 0; j < theirs.rails.size(); ++j)
      if (theirs.rails[j].family == family) of_family.push_back(j);
    if (of_family.empty()) continue;
    const auto turn = static_cast<std::size_t>(
        std::count_if(ours.rails.begin(), ours.rails.begin() + static_cast<std::ptrdiff_t>(i),
                      [&](const RailAddress& rail) { return rail.family == family; }));
    const std::size_t other = of_family[turn % of_family.size()];
    const bool near = ours.rails[i].near && theirs.rails[other].near;
    pairs.push_back({i, other, shared ? 0 : near ? 1 : 2});
  }
  return pairs;
}

}  // namespace leeway::transport
