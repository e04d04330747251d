// Operations of an endpoint, from the call to the one report of how it ended.
#include <fmt/format.h>
#include <rdma/fi_rma.h>

#include <algorithm>

#include "transport/endpoint_impl.h"
#include "transport/registered_memory.h"

namespace leeway::transport {
namespace {

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

// libfabric's errors as ours. What it says of a peer that died differs from provider to provider,
// so everything that is not clearly the caller's or the machine's counts as the peer's absence.
Code code_of(int error) {
  switch (error) {
    case FI_EINVAL:
    case FI_EACCES:
    case FI_EFAULT:
    case FI_EMSGSIZE:
    case FI_ENOKEY:
    case FI_EKEYREJECTED:
    case FI_ETRUNC:
      return Code::kInvalidArgument;
    case FI_ENOMEM:
    case FI_EMFILE:
      return Code::kResourceExhausted;
    case FI_ENOSYS:
    case FI_EOPNOTSUPP:
      return Code::kUnsupported;
    default:
      return Code::kUnavailable;
  }
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
  if (deadline <= MonotonicClock::now())
    return refuse(Code::kTimedOut, fmt::format("{} {}: its deadline is already past", verb(kind),
                                               state->address->printable));
  if (free_operations_.empty()) {
    operations_.push_back(std::make_unique<Operation>(*this));
    free_operations_.push_back(operations_.back().get());
  }
  Operation* operation = free_operations_.back();
  free_operations_.pop_back();
  operation->kind = kind;
  operation->begun = true;
  operation->peer = peer.value();
  operation->address = state->address;
  operation->done = std::move(done);
  operation->when = deadline;
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
  auto buffer = send_buffers_->fill(message);
  if (!buffer) {
    report(*operation, {.status = tl::unexpected(std::move(buffer).error())});
    return recycle_if_over(*operation);
  }
  operation->region = std::move(buffer->region);
  operation->offset = buffer->offset;
  operation->size = message.size();
  start_operation(*operation);
}

void Endpoint::Impl::transfer(Operation::Kind kind, Peer peer, LocalRange local, RemoteRange remote,
                              TimePoint deadline, Completion done) {
  const std::size_t there = local.memory != nullptr ? local.memory->bytes().size() : 0;
  if (local.offset > there || local.size > there - local.offset)
    return finish_later(
        std::move(done),
        {.status = fail(Code::kInvalidArgument,
                        fmt::format("bytes {} to {} of a registered memory of {}", local.offset,
                                    local.offset + local.size, there))});
  const std::size_t windows = remote.memory != nullptr ? remote.memory->size() : 0;
  if (windows == 0)
    return finish_later(std::move(done), {.status = fail(Code::kInvalidArgument,
                                                         "the peer's memory has no window")});
  Operation* operation = begin(kind, peer, deadline, done);
  if (operation == nullptr) return;
  if (local.size == 0) {  // nothing to ask the provider for; some refuse it
    report(*operation, {});
    return recycle_if_over(*operation);
  }
  operation->region = local.memory->impl_->region;
  operation->offset = local.offset;
  operation->size = local.size;
  operation->remote = std::move(remote);
  start_operation(*operation);
}

void Endpoint::Impl::start_operation(Operation& operation) {
  PeerState& peer = *find_peer(operation.peer);
  // What waits for this peer goes first.
  if (peer.waiting.empty() && advance(operation) == Posting::kDone) return;
  if (peer.waiting.empty()) waiting_peers_.push_back(peer.id);
  operation.queue_place = peer.waiting.insert(peer.waiting.end(), &operation);
  operation.queued = true;
}

// Gives the provider as much of the operation as it takes.
Endpoint::Impl::Posting Endpoint::Impl::advance(Operation& operation) {
  const bool message = operation.kind == Operation::Kind::kSend;
  do {
    const std::size_t left = operation.size - operation.posted;
    const std::size_t length = message ? left : std::min(left, segment_limit_);
    Segment& segment = take_segment(operation);
    const ssize_t error = post_segment(operation, segment, length);
    if (error != 0) {
      free_segments_.push_back(&segment);
      if (error == -FI_EAGAIN) return Posting::kLater;
      operation.status = failure(operation, static_cast<int>(-error), "");
      break;
    }
    find_peer(operation.peer)->reached = true;
    operation.posted += length;
    ++operation.in_provider;
    ++operation.address->in_provider;
  } while (operation.posted < operation.size);
  if (operation.in_provider == 0) report(operation, {.status = operation.status});
  recycle_if_over(operation);
  return Posting::kDone;
}

ssize_t Endpoint::Impl::post_segment(Operation& operation, Segment& segment, std::size_t length) {
  fid_ep* const endpoint = endpoint_.get();
  const fi_addr_t peer = operation.address->index;
  const auto local = operation.region->bytes().subspan(operation.offset + operation.posted, length);
  void* descriptor = operation.region->descriptor();
  Window window;
  if (operation.kind != Operation::Kind::kSend) {
    window = operation.remote.memory->front();
    window.address += operation.remote.offset + operation.posted;
  }
  switch (operation.kind) {
    case Operation::Kind::kSend:
      return fi_send(endpoint, local.data(), length, descriptor, peer, &segment.context);
    case Operation::Kind::kRead:
      return fi_read(endpoint, local.data(), length, descriptor, peer, window.address, window.key,
                     &segment.context);
    case Operation::Kind::kWrite:
      break;
  }
  // fi_writemsg, because a plain fi_write of some providers forgets delivery-complete.
  const iovec from{.iov_base = local.data(), .iov_len = length};
  const fi_rma_iov to{.addr = window.address, .len = length, .key = window.key};
  fi_msg_rma write{};
  write.msg_iov = &from;
  write.desc = &descriptor;
  write.iov_count = 1;
  write.addr = peer;
  write.rma_iov = &to;
  write.rma_iov_count = 1;
  write.context = &segment.context;
  const std::uint64_t flags = FI_COMPLETION | (domain_->ask_delivery ? FI_DELIVERY_COMPLETE : 0);
  return fi_writemsg(endpoint, &write, flags);
}

Segment& Endpoint::Impl::take_segment(Operation& operation) {
  if (free_segments_.empty()) {
    segments_.push_back(std::make_unique<Segment>());
    segments_.back()->kind = Posted::Kind::kSegment;
    free_segments_.push_back(segments_.back().get());
  }
  Segment& segment = *free_segments_.back();
  free_segments_.pop_back();
  segment.operation = &operation;
  return segment;
}

void Endpoint::Impl::segment_done(Segment& segment, Status status) {
  Operation& operation = *segment.operation;
  segment.operation = nullptr;
  free_segments_.push_back(&segment);
  --operation.in_provider;
  --operation.address->in_provider;
  if (!status) {
    if (operation.status) operation.status = std::move(status);
    leave_queue(operation);  // the rest of it need not be tried
  }
  if (operation.in_provider == 0 && !operation.queued && !operation.reported) {
    if (operation.status) {
      switch (operation.kind) {
        case Operation::Kind::kSend:
          messages_sent_.add(1);
          break;
        case Operation::Kind::kRead:
          bytes_read_.add(operation.size);
          break;
        case Operation::Kind::kWrite:
          bytes_written_.add(operation.size);
          break;
      }
    }
    report(operation, {.status = operation.status});
  }
  recycle_if_over(operation);
}

void Endpoint::Impl::report(Operation& operation, Outcome outcome) {
  LEEWAY_CHECK(!operation.reported);
  operation.reported = true;
  timers_.remove(operation);
  finish_later(std::move(operation.done), std::move(outcome));
  operation.done = nullptr;
}

void Endpoint::Impl::recycle_if_over(Operation& operation) {
  if (!operation.reported || operation.in_provider != 0 || operation.queued) return;
  if (operation.kind == Operation::Kind::kSend && operation.region)
    send_buffers_->give_back({std::move(operation.region), operation.offset});
  const auto address = std::move(operation.address);
  operation.address.reset();
  operation.region.reset();
  operation.offset = operation.size = operation.posted = 0;
  operation.remote = {};
  operation.status = {};
  operation.begun = operation.reported = false;
  free_operations_.push_back(&operation);
  if (find_peer(operation.peer) == nullptr) forget_if_unused(address);
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
      const std::size_t before = operation.posted;
      peer.waiting.pop_front();
      operation.queued = false;
      if (advance(operation) == Posting::kLater) {
        operation.queue_place = peer.waiting.insert(peer.waiting.begin(), &operation);
        operation.queued = true;
        moved |= operation.posted != before;
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

void Endpoint::Impl::timed_out(Operation& operation) {
  const bool posted = operation.in_provider != 0;
  std::string_view why = "the peer does not take it";
  if (posted)
    why = domain_->traits->dead_peer == DeadPeer::kSilence
              ? "no completion, the peer is gone or stopped"
              : "no completion, the peer is stopped or unreachable";
  leave_queue(operation);
  // A message was copied, so its memory is the caller's in any case.
  report(operation,
         {.status = fail(Code::kTimedOut,
                         fmt::format("{} {}, {} bytes: deadline passed: {}", verb(operation.kind),
                                     operation.address->printable, operation.size, why)),
          .memory_released = !posted || operation.kind == Operation::Kind::kSend});
  recycle_if_over(operation);
}

// Ends what is pending to `only_peer`, or to anybody when that is 0.
void Endpoint::Impl::cancel_all(Code code, const std::string& why, std::uint64_t only_peer) {
  for (const auto& operation : operations_) {
    if (!operation->begun || operation->reported) continue;
    if (only_peer != 0 && operation->peer != only_peer) continue;
    leave_queue(*operation);
    report(*operation, {.status = fail(code, fmt::format("{} {}: {}", verb(operation->kind),
                                                         operation->address->printable, why)),
                        .memory_released = operation->in_provider == 0 ||
                                           operation->kind == Operation::Kind::kSend});
    recycle_if_over(*operation);
  }
}

Status Endpoint::Impl::failure(const Operation& operation, int error,
                               const std::string& provider_text) const {
  const bool more = !provider_text.empty() && provider_text != fi_strerror(error);
  return fail(code_of(error),
              fmt::format("{} {}, {} bytes: {}{}", verb(operation.kind),
                          operation.address->printable, operation.size, fi_strerror(error),
                          more ? fmt::format(" ({})", provider_text) : ""));
}

}  // namespace leeway::transport
