// Peers of an endpoint: who is in the address vector, and when one may leave it.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "transport/endpoint_impl.h"

namespace leeway::transport {

Result<Peer> Endpoint::Impl::connect(std::span<const std::byte> address) {
  const std::string raw(reinterpret_cast<const char*>(address.data()), address.size());
  if (const auto known = peer_by_address_.find(raw); known != peer_by_address_.end())
    return Peer(known->second);
  auto entry = addresses_.find(raw);
  if (entry == addresses_.end()) {
    // Providers read as many bytes as their own addresses have, whatever we hand them.
    const bool text = domain_->info->addr_format == FI_ADDR_STR;
    if (text ? address.empty() || address.back() != std::byte{0} || address.size() > 256
             : address.size() != info_.address.size())
      return fail(
          Code::kInvalidArgument,
          fmt::format("{} bytes are no address of fabric {}: every member of a job uses the "
                      "same --fabric",
                      address.size(), info_.fabric));
    auto fresh = std::make_shared<Address>();
    fresh->raw = raw;
    char text_form[256];
    std::size_t length = sizeof text_form;
    if (fi_av_straddr(addresses_fid_.get(), raw.data(), text_form, &length) != nullptr)
      fresh->printable.assign(text_form, strnlen(text_form, sizeof text_form));
    const int inserted =
        fi_av_insert(addresses_fid_.get(), raw.data(), 1, &fresh->index, 0, nullptr);
    if (inserted != 1 || fresh->index == FI_ADDR_NOTAVAIL)
      return fail(Code::kUnavailable,
                  fmt::format("the address {} is not accepted by provider {}: {}", fresh->printable,
                              info_.provider, inserted < 0 ? fi_strerror(-inserted) : "malformed"));
    entry = addresses_.emplace(raw, std::move(fresh)).first;
  }
  auto state = std::make_unique<PeerState>();
  state->id = next_peer_++;
  state->address = entry->second;
  const Peer peer(state->id);
  peer_by_address_.emplace(raw, state->id);
  peers_.emplace(state->id, std::move(state));
  return peer;
}

void Endpoint::Impl::disconnect(Peer peer) {
  const PeerState* state = find_peer(peer.value());
  if (state == nullptr) return;
  const std::shared_ptr<Address> address = state->address;
  cancel_all(Code::kUnavailable, fmt::format("disconnected from {}", address->printable),
             peer.value());
  peer_by_address_.erase(address->raw);
  std::erase(waiting_peers_, peer.value());
  peers_.erase(peer.value());
  forget_if_unused(address);
}

// Taking an address away under a transfer is undefined; one whose transfers never end stays.
void Endpoint::Impl::forget_if_unused(const std::shared_ptr<Address>& address) {
  if (address->in_provider != 0 || peer_by_address_.contains(address->raw)) return;
  if (addresses_.erase(address->raw) == 0) return;
  fi_av_remove(addresses_fid_.get(), &address->index, 1, 0);
}

PeerState* Endpoint::Impl::find_peer(std::uint64_t id) noexcept {
  const auto it = peers_.find(id);
  return it == peers_.end() ? nullptr : it->second.get();
}

}  // namespace leeway::transport
