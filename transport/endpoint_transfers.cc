// Operations of an endpoint, from the call to the one report of how it ended.
#include <fmt/format.h>

#include <algorithm>

#include "transport/endpoint_impl.h"
#include "transport/providers.h"
#include "transport/registered_memory.h"

namespace leeway::transport {
namespace {

// With several links a transfer goes out in pieces of this size, each by the link that is least
// busy for its rate.
constexpr std::size_t kStripe = std::size_t{512} << 10;

std::string_view verb(Operation::Kind kind) {
  switch (kind) {
    case Operation::Kind::kSend:
      return "message to";
    case Operation::Kind::kRead:
      return "read from";
    case Operation::Kind::kWrite:
      return "write to";
  }
  return "?";
}

}  // namespace

void Operation::expire() { owner.timed_out(*this); }

void Endpoint::Impl::finish_later(Completion done, Outcome outcome) {
  if (done) finished_.push_back({std::move(done), std::move(outcome)});
}

// Null, and `done` is on its way, when the operation cannot begin.
Operation* Endpoint::Impl::begin(Operation::Kind kind, Peer peer, TimePoint deadline,
                                 Completion& done) {
  const auto refuse = [&](Code code, std::string why) {
    finish_later(std::move(done), {.status = fail(code, std::move(why))});
    return nullptr;
  };
  if (stopping_) return refuse(Code::kCancelled, "the endpoint is closing");
  const PeerState* state = find_peer(peer.value());
  if (state == nullptr) return refuse(Code::kUnavailable, "the peer is not connected");
  const TimePoint now = MonotonicClock::now();
  if (deadline <= now)
    return refuse(Code::kTimedOut,
                  fmt::format("{} {}: its deadline is already past", verb(kind), state->printable));
  if (free_operations_.empty()) {
    operations_.push_back(std::make_unique<Operation>(*this));
    free_operations_.push_back(operations_.back().get());
  }
  Operation* operation = free_operations_.back();
  free_operations_.pop_back();
  operation->kind = kind;
  operation->begun = true;
  operation->peer = peer.value();
  operation->done = std::move(done);
  operation->began = now;
  operation->deadline = deadline;
  // A rail that is silent for half of the time, while there are others, counts as failed.
  operation->when = state->links.size() > 1 ? now + (deadline - now) / 2 : deadline;
  timers_.add(*operation);
  return operation;
}

void Endpoint::Impl::send(Peer peer, std::span<const std::byte> message, TimePoint deadline,
                          Completion done) {
  if (message.size() > info_.max_message)
    return finish_later(
        std::move(done),
        {.status = fail(Code::kInvalidArgument, fmt::format("a message of {} bytes, more than {}",
                                                            message.size(), info_.max_message))});
  Operation* operation = begin(Operation::Kind::kSend, peer, deadline, done);
  if (operation == nullptr) return;
  operation->message = message;
  operation->size = message.size();
  // A rail copies what it takes; what has to wait, or may go out again by another rail, is ours to
  // copy.
  const auto keep = [&] {
    operation->kept.assign(message.begin(), message.end());
    operation->message = operation->kept;
  };
  if (find_peer(peer.value())->links.size() > 1) keep();
  start_operation(*operation);
  if (operation->queued && operation->kept.empty()) keep();
}

void Endpoint::Impl::transfer(Operation::Kind kind, Peer peer, LocalRange local, RemoteRange remote,
                              TimePoint deadline, Completion done) {
  const auto refuse = [&](std::string why) {
    finish_later(std::move(done), {.status = fail(Code::kInvalidArgument, std::move(why))});
  };
  const std::size_t there = local.memory != nullptr ? local.memory->size() : 0;
  if (local.offset > there || local.size > there - local.offset)
    return refuse(fmt::format("bytes {} to {} of a registered memory of {}", local.offset,
                              local.offset + local.size, there));
  if (remote.memory == nullptr) return refuse("the peer's memory is not named");
  Operation* operation = begin(kind, peer, deadline, done);
  if (operation == nullptr) return;
  if (local.size == 0) {  // nothing to ask a rail for; some refuse it
    report(*operation, {});
    return end_if_over(*operation);
  }
  operation->region = local.memory->impl_->region;
  operation->offset = local.offset;
  operation->size = local.size;
  operation->remote = std::move(remote);
  start_operation(*operation);
}

std::shared_ptr<const std::byte> Endpoint::Impl::map(Peer peer, const RemoteRange& from,
                                                     std::size_t size) {
  const PeerState* state = find_peer(peer.value());
  if (state == nullptr || from.memory == nullptr) return nullptr;
  for (const Link& link : state->links) {
    if (!link.connected || link.window >= from.memory->size()) continue;
    Window window = (*from.memory)[link.window];
    // Where that wraps around, the rail finds it outside.
    window.address += from.offset;
    if (auto bytes = rails_[link.rail]->map(link.peer, window, size)) return bytes;
  }
  return nullptr;
}

void Endpoint::Impl::start_operation(Operation& operation) {
  // What waits for this peer goes first.
  if (find_peer(operation.peer)->waiting.empty() && advance(operation) == Posting::kDone) return;
  queue_up(operation, false);
}

void Endpoint::Impl::queue_up(Operation& operation, bool first) {
  PeerState& peer = *find_peer(operation.peer);
  if (peer.waiting.empty()) waiting_peers_.push_back(peer.id);
  operation.queue_place =
      peer.waiting.insert(first ? peer.waiting.begin() : peer.waiting.end(), &operation);
  operation.queued = true;
}

// Gives rails as much of the operation as they take.
Endpoint::Impl::Posting Endpoint::Impl::advance(Operation& operation) {
  PeerState& peer = *find_peer(operation.peer);
  const bool message = operation.kind == Operation::Kind::kSend;
  const auto left = [&] { return message ? !operation.sent : operation.posted < operation.size; };
  while (operation.status && (left() || !operation.again.empty())) {
    const bool repeated = !operation.again.empty();
    Piece piece = repeated ? operation.again.back()
                           : Piece{operation.posted, operation.size - operation.posted};
    Link* const chosen = choose_link(peer, operation, piece.size);
    if (chosen == nullptr) {
      operation.status =
          fail(Code::kInvalidArgument, "no rail between the two knows both memories");
      break;
    }
    Link& link = *chosen;
    if (!message && !repeated) {
      const std::size_t limit =
          std::min(options_.max_transfer, rails_[link.rail]->info().max_transfer);
      piece.size = std::min(piece.size, peer.links.size() > 1 ? std::min(kStripe, limit) : limit);
    }
    auto posted = post_piece(operation, peer, link, piece);
    if (posted && *posted == Rail::Post::kTryAgain) return Posting::kLater;
    if (posted) {
      operation.sent = true;
      if (repeated)
        operation.again.pop_back();
      else
        operation.posted += piece.size;
      continue;
    }
    if (posted.error().code == Code::kUnavailable) {
      link_failed(peer, link, posted.error());
      if (may_go_on(operation, peer, {link.rail, link.connections})) continue;
    }
    operation.status = tl::unexpected(std::move(posted).error());
  }
  if (operation.working == 0 && !operation.reported) report(operation, {operation.status});
  end_if_over(operation);
  return Posting::kDone;
}

Result<Rail::Post> Endpoint::Impl::post_piece(Operation& operation, PeerState& peer, Link& link,
                                              Piece piece) {
  Rail& rail = *rails_[link.rail];
  auto reached = reach(link);
  if (!reached) return tl::unexpected(std::move(reached).error());
  Window window;
  if (operation.kind != Operation::Kind::kSend) {
    window = (*operation.remote.memory)[link.window];
    window.address += operation.remote.offset + piece.offset;
  }
  Posted& posted = take_posted();
  posted.peer = peer.id;
  posted.rail = link.rail;
  posted.operation = &operation;
  posted.piece = piece;
  posted.connection = link.connections;
  const auto local = [&] {
    return operation.region->piece(link.rail, operation.offset + piece.offset, piece.size);
  };
  auto result =
      operation.kind == Operation::Kind::kSend   ? rail.send(link.peer, operation.message, posted)
      : operation.kind == Operation::Kind::kRead ? rail.read(link.peer, local(), window, posted)
                                                 : rail.write(link.peer, local(), window, posted);
  if (!result || *result == Rail::Post::kTryAgain) {
    give_back(posted);
    return result;
  }
  link.under_way += piece.size;
  ++operation.with_rails;
  ++operation.working;
  return result;
}

Posted& Endpoint::Impl::take_posted() {
  if (free_posted_.empty()) {
    posted_.push_back(std::make_unique<Posted>());
    free_posted_.push_back(posted_.back().get());
  }
  Posted& posted = *free_posted_.back();
  free_posted_.pop_back();
  return posted;
}

void Endpoint::Impl::give_back(Posted& posted) {
  posted = Posted{};
  free_posted_.push_back(&posted);
}

// A piece came back from its rail.
void Endpoint::Impl::piece_over(Posted& posted, Status status) {
  Operation& operation = *posted.operation;
  const Piece piece = posted.piece;
  const bool counts = !posted.given_up;
  const std::uint32_t connection = posted.connection;
  PeerState* peer = find_peer(posted.peer);
  Link* link = peer != nullptr ? find_link(*peer, posted.rail) : nullptr;
  give_back(posted);
  if (link != nullptr) {
    link->under_way -= std::min(link->under_way, piece.size);
    const bool proof =
        operation.kind != Operation::Kind::kSend || rails_[link->rail]->info().traits->sends_arrive;
    if (status && proof) link_works(*peer, *link, connection);
  }
  --operation.with_rails;
  if (counts) --operation.working;
  if (!status && counts && !operation.reported) {
    const bool gone = status.error().code == Code::kUnavailable;
    // It may have been reached anew since.
    if (gone && link != nullptr && connection == link->connections)
      link_failed(*peer, *link, status.error());
    if (gone && link != nullptr && may_go_on(operation, *peer, {link->rail, connection})) {
      operation.again.push_back(piece);
      if (!operation.queued) queue_up(operation, true);
    } else {
      if (operation.status) operation.status = std::move(status);
      leave_queue(operation);  // the rest of it need not be tried
    }
  }
  if (operation.working == 0 && !operation.queued && !operation.reported) {
    if (operation.status) {
      if (operation.kind == Operation::Kind::kSend) messages_sent_.add(1);
      if (operation.kind == Operation::Kind::kRead) bytes_read_.add(operation.size);
      if (operation.kind == Operation::Kind::kWrite) bytes_written_.add(operation.size);
    }
    report(operation, {operation.status});
  }
  end_if_over(operation);
}

// Says who and how much; a message was copied, so its memory is the caller's in any case.
void Endpoint::Impl::report(Operation& operation, Outcome outcome) {
  LEEWAY_CHECK(!operation.reported);
  operation.reported = true;
  timers_.remove(operation);
  if (!outcome.status) {
    const PeerState* peer = find_peer(operation.peer);
    outcome.status.error().message =
        fmt::format("{} {}, {} bytes: {}", verb(operation.kind),
                    peer != nullptr ? peer->printable : "a peer that is gone", operation.size,
                    outcome.status.error().message);
  }
  outcome.memory_released = operation.with_rails == 0 || operation.kind == Operation::Kind::kSend;
  finish_later(std::move(operation.done), std::move(outcome));
  operation.done = nullptr;
}

void Endpoint::Impl::end_if_over(Operation& operation) {
  if (!operation.reported || operation.with_rails != 0 || operation.queued) return;
  operation.region.reset();
  operation.kept.clear();
  operation.message = {};
  operation.again.clear();
  operation.failures.clear();
  operation.offset = operation.size = operation.posted = 0;
  operation.remote = {};
  if (!operation.status) operation.status = Status();
  operation.begun = operation.sent = operation.reported = false;
  free_operations_.push_back(&operation);
}

void Endpoint::Impl::leave_queue(Operation& operation) {
  if (!operation.queued) return;
  operation.queued = false;
  PeerState& peer = *find_peer(operation.peer);
  peer.waiting.erase(operation.queue_place);
  if (peer.waiting.empty()) std::erase(waiting_peers_, peer.id);
}

bool Endpoint::Impl::retry_waiting() {
  bool moved = false;
  // Not a range-for: the list of peers shrinks while it is walked.
  for (std::size_t i = 0; i < waiting_peers_.size();) {
    PeerState& peer = *find_peer(waiting_peers_[i]);
    while (!peer.waiting.empty()) {
      Operation& operation = *peer.waiting.front();
      const std::size_t before = operation.posted, again = operation.again.size();
      peer.waiting.pop_front();
      operation.queued = false;
      if (advance(operation) == Posting::kLater) {
        operation.queue_place = peer.waiting.insert(peer.waiting.begin(), &operation);
        operation.queued = true;
        moved |= operation.posted != before || operation.again.size() != again;
        break;
      }
      moved = true;
    }
    if (peer.waiting.empty())
      waiting_peers_.erase(waiting_peers_.begin() + static_cast<std::ptrdiff_t>(i));
    else
      ++i;
  }
  return moved;
}

// True when pieces of the operation are to go out again.
bool Endpoint::Impl::give_up_silent_links(PeerState& peer, Operation& operation) {
  const auto silent = [&](const Link& link) { return link.heard < operation.began; };
  if (std::ranges::all_of(peer.links, silent)) return false;  // then it is the peer
  bool repeat = false;
  for (const auto& posted : posted_) {
    if (posted->operation != &operation || posted->given_up) continue;
    Link* link = find_link(peer, posted->rail);
    if (!silent(*link)) continue;
    if (link->connected)
      link_failed(peer, *link, {Code::kTimedOut, "no completion for a long time"});
    posted->given_up = true;
    --operation.working;
    operation.again.push_back(posted->piece);
    repeat = true;
  }
  return repeat;
}

void Endpoint::Impl::timed_out(Operation& operation) {
  PeerState* peer = find_peer(operation.peer);
  if (MonotonicClock::now() < operation.deadline) {
    // Half of the time is over: what silent rails have goes out again by others.
    operation.when = operation.deadline;
    timers_.add(operation);
    if (give_up_silent_links(*peer, operation) && !operation.queued) queue_up(operation, true);
    return;
  }
  const bool posted = operation.with_rails != 0;
  leave_queue(operation);
  report(operation, {fail(Code::kTimedOut,
                          fmt::format("deadline passed: {}",
                                      posted ? "no completion, the peer is stopped or unreachable"
                                             : "the peer does not take it"))});
  end_if_over(operation);
}

// Ends what is pending to `only_peer`, or to anybody when that is 0.
void Endpoint::Impl::cancel_all(Code code, const std::string& why, std::uint64_t only_peer) {
  for (const auto& operation : operations_) {
    if (!operation->begun || operation->reported) continue;
    if (only_peer != 0 && operation->peer != only_peer) continue;
    leave_queue(*operation);
    report(*operation, {fail(code, why)});
    end_if_over(*operation);
  }
}

}  // namespace leeway::transport
