// Reads that the peer carries out as writes, where the provider writes faster than it reads
// (ProviderTraits::granted_reads): GRANT says where, WRITTEN that it is done. From outside it is a
// read: who starts it, and its deadline, are the same.
#include <fmt/format.h>

#include <algorithm>

#include "common/log.h"
#include "transport/endpoint_impl.h"
#include "transport/providers.h"

namespace leeway::transport {
namespace {

// A peer that asks for more than this at a time is not served further.
constexpr std::size_t kMaxReplies = 4096;
constexpr std::size_t kMaxGuests = 256;
// While grants are out nothing of ours is with the provider, so nothing would tell that the peer
// died: a frame now and then does.
constexpr Duration kLook = milliseconds(250);

}  // namespace

bool Endpoint::Impl::granted(const Operation& operation, const Link& link) const noexcept {
  return operation.kind == Operation::Kind::kRead &&
         rails_[link.rail]->info().traits->granted_reads && !operation.region->remote()->empty();
}

Result<Rail::Post> Endpoint::Impl::post_grant(Operation& operation, PeerState& peer, Link& link,
                                              Piece piece, Window source) {
  Posted& posted = take_posted(Posted::Kind::kGrant, peer.id, link.rail);
  posted.operation = &operation;
  posted.piece = piece;
  posted.number = next_grant_++;
  Window target = (*operation.region->remote())[link.rail];
  target.address += operation.offset + piece.offset;
  const auto frame = encode({.sender = address_.id,
                             .body = Grant{posted.number, source, target, piece.size,
                                           rails_[link.rail]->info().address}});
  auto result = note_posted(rails_[link.rail]->send(link.peer, frame, posted), posted, link);
  if (result && *result == Rail::Post::kTaken) {
    grants_.emplace(posted.number, &posted);
    watch_grants();
  }
  return result;
}

// The rail has let go of the frame.
void Endpoint::Impl::grant_over(Posted& posted, Status status) {
  posted.sent = true;
  if (!status) {
    grants_.erase(posted.number);
    return piece_over(posted, std::move(status));
  }
  if (posted.written) piece_over(posted, posted.outcome);
}

void Endpoint::Impl::on_written(const Written& written) {
  const auto found = grants_.find(written.number);
  if (found == grants_.end()) return;  // of a link that failed meanwhile
  Posted& posted = *found->second;
  if (posted.rail != polled_rail_) return;
  grants_.erase(found);
  posted.written = true;
  if (written.error)
    posted.outcome = fail(*written.error, "the peer could not write what was granted");
  if (posted.sent) piece_over(posted, posted.outcome);
}

// The link is gone, and with it the peer's way of writing.
void Endpoint::Impl::fail_grants(std::uint64_t peer, std::size_t rail, const Error& error) {
  std::vector<Posted*> gone;
  for (const auto& [number, posted] : grants_)
    if (posted->peer == peer && posted->rail == rail) gone.push_back(posted);
  for (Posted* posted : gone) {
    grants_.erase(posted->number);
    posted->written = true;
    posted->outcome = tl::unexpected(error);
    if (posted->sent) failed_grants_.push_back(posted);
  }
}

// Not from inside fail_grants(): whoever called that may be in the middle of the same operation.
bool Endpoint::Impl::end_failed_grants() {
  const auto failed = std::exchange(failed_grants_, {});
  for (Posted* posted : failed) piece_over(*posted, posted->outcome);
  return !failed.empty();
}

void Endpoint::Impl::watch_grants() {
  if (watching_grants_) return;
  watching_grants_ = true;
  at(MonotonicClock::now() + kLook, [this] {
    watching_grants_ = false;
    if (grants_.empty()) return;
    std::vector<std::pair<std::uint64_t, std::size_t>> links;
    for (const auto& [number, posted] : grants_) links.emplace_back(posted->peer, posted->rail);
    std::ranges::sort(links);
    const auto rest = std::ranges::unique(links);
    links.erase(rest.begin(), rest.end());
    for (const auto& [peer, rail] : links)
      send_frame(peer, rail, {.sender = address_.id, .body = Ping{}});
    watch_grants();
  });
}

// --- the other side ------------------------------------------------------------------------------

void Endpoint::Impl::on_grant(std::uint64_t sender, const Grant& grant) {
  const std::uint64_t asker = peer_that_asks(sender, grant.answer_to);
  if (asker == 0 || replies_.size() >= kMaxReplies) return;
  Reply reply{.peer = asker, .rail = polled_rail_, .grant = grant};
  reply.grant.answer_to = {};
  reply.region = regions_->find(polled_rail_, grant.source, grant.bytes);
  if (!reply.region || grant.bytes > rails_[polled_rail_]->info().max_transfer)
    reply.written = Written{grant.number, Code::kInvalidArgument};
  replies_.push_back(std::move(reply));
  retry_replies();
}

// Somebody may read from us whom we were never told to connect to.
std::uint64_t Endpoint::Impl::peer_that_asks(std::uint64_t sender,
                                             std::span<const std::byte> answer_to) {
  const auto add_link = [&](PeerState& to) {
    Link& link = to.links.emplace_back();
    link.rail = polled_rail_;
    link.address.assign(answer_to.begin(), answer_to.end());
    return reach(link).has_value();
  };
  if (const auto known = peer_by_endpoint_.find(sender); known != peer_by_endpoint_.end()) {
    PeerState& peer = *find_peer(known->second);
    const bool guest = peer.address.empty();
    if (guest && find_link(peer, polled_rail_) == nullptr) add_link(peer);
    return peer.id;
  }
  if (guests_.size() == kMaxGuests) {
    const std::uint64_t oldest = guests_.front();
    guests_.pop_front();
    disconnect(Peer(oldest));
  }
  auto guest = std::make_unique<PeerState>();
  guest->id = next_peer_++;
  guest->endpoint = sender;
  guest->printable = rails_[polled_rail_]->printable(answer_to);
  if (!add_link(*guest)) return 0;
  const std::uint64_t id = guest->id;
  guests_.push_back(id);
  peer_by_endpoint_[sender] = id;
  peers_.emplace(id, std::move(guest));
  return id;
}

// False: try again later. A peer or a link that is gone needs no answer.
bool Endpoint::Impl::send_frame(std::uint64_t peer, std::size_t rail, const Frame& frame) {
  PeerState* state = find_peer(peer);
  if (state == nullptr) return true;
  Link* link = find_link(*state, rail);
  if (link == nullptr || !reach(*link)) return true;
  Posted& posted = take_posted(Posted::Kind::kNote, peer, rail);
  const auto result = rails_[rail]->send(link->peer, encode(frame), posted);
  if (result && *result == Rail::Post::kTaken) return true;
  give_back(posted);
  if (!result) link_failed(*state, *link, result.error());
  return !result;
}

bool Endpoint::Impl::retry_replies() {
  bool moved = false;
  for (auto it = replies_.begin(); it != replies_.end();) {
    bool over = true;
    PeerState* peer = find_peer(it->peer);
    if (it->written) {
      over = send_frame(it->peer, it->rail, {.sender = address_.id, .body = *it->written});
    } else if (peer != nullptr) {
      Link* link = find_link(*peer, it->rail);
      if (link != nullptr && reach(*link)) {
        Posted& posted = take_posted(Posted::Kind::kReply, it->peer, it->rail);
        posted.number = it->grant.number;
        posted.region = it->region;
        const Window own = (*it->region->remote())[it->rail];
        const auto result = rails_[it->rail]->write(
            link->peer,
            it->region->piece(it->rail, it->grant.source.address - own.address, it->grant.bytes),
            it->grant.target, posted);
        if (!result) {
          it->written = Written{it->grant.number, result.error().code};
          over = false;
        } else {
          over = *result == Rail::Post::kTaken;
        }
        if (!result || !over) give_back(posted);
      }
    }
    moved |= over;
    it = over ? replies_.erase(it) : std::next(it);
  }
  return moved;
}

void Endpoint::Impl::reply_over(Posted& posted, Status status) {
  Reply reply{.peer = posted.peer, .rail = posted.rail};
  reply.written =
      Written{posted.number, status ? std::nullopt : std::optional<Code>(status.error().code)};
  give_back(posted);
  replies_.push_back(std::move(reply));
  retry_replies();
}

}  // namespace leeway::transport
