// Peers of an endpoint, and the links to each: which to use, which have failed.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "common/log.h"
#include "transport/endpoint_impl.h"
#include "transport/providers.h"

namespace leeway::transport {
namespace {

std::vector<std::string> families(const EndpointAddress& address) {
  std::vector<std::string> names;
  for (const RailAddress& rail : address.rails)
    if (std::ranges::find(names, rail.family) == names.end()) names.push_back(rail.family);
  return names;
}

}  // namespace

bool Endpoint::Impl::could_reach(std::span<const std::byte> address) const {
  const auto theirs = decode_address(address);
  return theirs && !pair_rails(address_, *theirs).empty();
}

Result<Peer> Endpoint::Impl::connect(std::span<const std::byte> address) {
  const std::string raw(reinterpret_cast<const char*>(address.data()), address.size());
  if (const auto known = peer_by_address_.find(raw); known != peer_by_address_.end())
    return Peer(known->second);
  auto theirs = decode_address(address);
  if (!theirs) return tl::unexpected(std::move(theirs).error());
  const auto pairs = pair_rails(address_, *theirs);
  if (pairs.empty())
    return fail(
        Code::kInvalidArgument,
        fmt::format("no way to the peer: fabric {} here, {} there; every member of a job "
                    "uses the same --fabric",
                    fmt::join(families(address_), " and "), fmt::join(families(*theirs), " and ")));
  auto state = std::make_unique<PeerState>();
  state->id = next_peer_++;
  state->address = raw;
  for (const RailPair& pair : pairs) {
    Link& link = state->links.emplace_back();
    link.rail = pair.ours;
    link.window = pair.theirs;
    link.preference = pair.preference;
    const std::uint32_t rate = rails_[pair.ours]->info().megabits;
    const std::uint32_t other = theirs->rails[pair.theirs].megabits;
    link.megabits = std::max(1u, rate == 0 ? other : other == 0 ? rate : std::min(rate, other));
    link.address = theirs->rails[pair.theirs].raw;
  }
  std::ranges::stable_sort(state->links, {}, &Link::preference);
  // The first is reached now, so that an address that cannot be one is refused here.
  auto reached = reach(state->links.front());
  if (!reached) return tl::unexpected(std::move(reached).error());
  state->printable = rails_[state->links.front().rail]->printable(state->links.front().address);
  const Peer peer(state->id);
  peer_by_address_.emplace(raw, state->id);
  peers_.emplace(state->id, std::move(state));
  return peer;
}

void Endpoint::Impl::disconnect(Peer peer) {
  PeerState* state = find_peer(peer.value());
  if (state == nullptr) return;
  cancel_all(Code::kUnavailable, "disconnected", peer.value());
  for (Link& link : state->links) hang_up(link);
  peer_by_address_.erase(state->address);
  std::erase(waiting_peers_, peer.value());
  peers_.erase(peer.value());
}

PeerState* Endpoint::Impl::find_peer(std::uint64_t id) noexcept {
  const auto it = peers_.find(id);
  return it == peers_.end() ? nullptr : it->second.get();
}

bool Endpoint::Impl::carries(const Link& link, const Operation& operation) noexcept {
  if (operation.kind == Operation::Kind::kSend) return true;
  const RemoteMemory& there = *operation.remote.memory;
  return link.window < there.size() && there[link.window] != kNoWindow &&
         operation.region->known(link.rail);
}

Link* Endpoint::Impl::choose_link(PeerState& peer, const Operation& operation, std::size_t size) {
  if (peer.links.size() == 1)
    return carries(peer.links.front(), operation) ? &peer.links.front() : nullptr;
  const TimePoint now = MonotonicClock::now();
  const bool message = operation.kind == Operation::Kind::kSend;
  const auto load = [&](const Link& link) {
    return static_cast<double>(link.under_way + size) / link.megabits;
  };
  Link* best = nullptr;
  Link* resting = nullptr;  // of those that have failed, the one whose failure is longest ago
  for (Link& link : peer.links) {
    if (!carries(link, operation)) continue;
    if (link.failed_until > now) {
      if (resting == nullptr || link.failed_until < resting->failed_until) resting = &link;
      continue;
    }
    if (best != nullptr && link.preference > best->preference) break;
    if (best == nullptr || (!message && load(link) < load(*best))) best = &link;
  }
  return best != nullptr ? best : resting;
}

Link* Endpoint::Impl::find_link(PeerState& peer, std::size_t rail) noexcept {
  const auto found = std::ranges::find(peer.links, rail, &Link::rail);
  return found == peer.links.end() ? nullptr : &*found;
}

Status Endpoint::Impl::reach(Link& link) {
  if (link.connected) return {};
  ++link.connections;
  auto peer = rails_[link.rail]->connect(link.address);
  if (!peer) return tl::unexpected(std::move(peer).error());
  link.peer = *peer;
  link.connected = true;
  return {};
}

// Whatever had been posted over one connection fails with it, and counts once.
bool Endpoint::Impl::may_go_on(Operation& operation, const PeerState& peer,
                               Operation::Failure failure) {
  auto& failures = operation.failures;
  if (std::ranges::find(failures, failure) == failures.end()) failures.push_back(failure);
  return failures.size() < peer.links.size();
}

void Endpoint::Impl::hang_up(Link& link) {
  if (link.connected) rails_[link.rail]->disconnect(link.peer);
  link.connected = false;
}

// The next use reaches for the peer anew: it may have come back, or be another process by then.
void Endpoint::Impl::link_failed(PeerState& peer, Link& link, const Error& error) {
  // It is tried again and again: said once.
  if (peer.links.size() > 1 && !link.out)
    log::warning("rail {} to {} is taken out: {}", rails_[link.rail]->info().printable,
                 peer.printable, error.message);
  link.out = true;
  link.failed_until = MonotonicClock::now() + options_.rest;
  hang_up(link);
}

void Endpoint::Impl::link_works(const PeerState& peer, Link& link, std::uint32_t connection) {
  link.heard = MonotonicClock::now();
  // What was under way when it failed says nothing of the way since.
  if (!link.out || !link.connected || connection != link.connections) return;
  if (peer.links.size() > 1)
    log::info("rail {} to {} works again", rails_[link.rail]->info().printable, peer.printable);
  link.out = false;
}

}  // namespace leeway::transport
