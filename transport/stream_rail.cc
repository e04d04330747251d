#include "transport/stream_rail.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "transport/host_addresses.h"
#include "transport/providers.h"
#include "transport/random_number.h"

namespace leeway::transport {
namespace {

// An epoll tag; those of senders and receivers come after.
constexpr std::uint64_t kListenerTag = 1;

constexpr Duration kStale = std::chrono::microseconds(20);
constexpr int kNewcomersAtOnce = 64;

// Of one rail, which may be one of several: no more than a part of what this process may open.
std::size_t max_strangers() noexcept {
  static const std::size_t kMost = [] {
    constexpr rlim_t kLeast = 64, kLimit = 1024;
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return static_cast<std::size_t>(kLeast);
    return static_cast<std::size_t>(std::clamp(limit.rlim_cur / 16, kLeast, kLimit));
  }();
  return kMost;
}

class StreamRegistration final : public Registration {
 public:
  StreamRegistration() = default;  // Access::kOwn: nothing for anybody
  StreamRegistration(StreamRegistry& registry, const ForeignMemory& memory)
      : registry_(&registry), key_(registry.enlist({memory.data, memory.size})) {}
  ~StreamRegistration() override {
    if (registry_ != nullptr) registry_->drop(key_);
  }
  StreamRegistration(const StreamRegistration&) = delete;
  StreamRegistration& operator=(const StreamRegistration&) = delete;

  Window window() const noexcept override { return {.address = 0, .key = key_}; }

 private:
  StreamRegistry* registry_ = nullptr;
  std::uint64_t key_ = 0;
};

}  // namespace

StreamRail::StreamRail(const Place& place)
    : epoll_(epoll_create1(EPOLL_CLOEXEC)),
      acceptor_("tcp", listen_at(place.address, place.port)),
      address_(address_of(acceptor_.descriptor())),
      last_id_(kListenerTag) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kListenerTag;
  if (!epoll_ || epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, acceptor_.descriptor(), &event) != 0)
    throw ConfigError(
        fmt::format("fabric tcp: epoll: {}; raise `ulimit -n`", std::strerror(errno)));
  address_.incarnation = random_number();
  info_.traits = &family_traits("tcp");
  info_.provider = "leeway-tcp";
  info_.device = interface_of(place.address);
  info_.printable = address_.printable();
  info_.address = encode(address_);
  info_.max_message = kStreamMessage;
  info_.max_transfer = std::numeric_limits<std::size_t>::max();
  info_.megabits = place.megabits;
  info_.numa_node = place.numa_node;
  info_.near = place.near;
}

StreamRail::~StreamRail() = default;

std::string StreamRail::printable(std::span<const std::byte> address) const {
  const auto decoded = decode_stream_address(address);
  return decoded ? decoded->printable() : "?";
}

Result<std::unique_ptr<Registration>> StreamRail::enlist(const ForeignMemory& memory,
                                                         Access access) {
  if (access == Access::kOwn) return std::make_unique<StreamRegistration>();
  return std::make_unique<StreamRegistration>(registry_, memory);
}

// --- peers ---------------------------------------------------------------------------------------

StreamSender* StreamRail::find_sender(std::uint64_t id) noexcept {
  const auto it = senders_.find(id);
  return it == senders_.end() ? nullptr : it->second.get();
}

StreamEnd* StreamRail::find(std::uint64_t id) noexcept {
  if (StreamSender* const sender = find_sender(id)) return sender;
  const auto it = receivers_.find(id);
  return it == receivers_.end() ? nullptr : it->second.get();
}

Result<RailPeer> StreamRail::connect(std::span<const std::byte> address) {
  const auto decoded = decode_stream_address(address);
  if (!decoded) return fail(Code::kInvalidArgument, "no address of a peer over tcp");
  const std::uint64_t id = ++last_id_;
  auto sender = StreamSender::make(address_, *decoded, epoll_.get(), id, finished_);
  if (!sender) return tl::unexpected(std::move(sender).error());
  senders_.emplace(id, std::move(*sender));
  return RailPeer(id);
}

void StreamRail::disconnect(RailPeer peer) {
  const auto it = senders_.find(peer.value());
  if (it == senders_.end()) return;
  it->second->give_up(Code::kUnavailable, "the connection was closed here");
  senders_.erase(it);
}

void StreamRail::accept_newcomers() {
  for (int i = 0; i < kNewcomersAtOnce; ++i) {
    FileDescriptor accepted = acceptor_.next();
    if (!accepted) return;
    prepare_stream(accepted);
    const std::uint64_t id = ++last_id_;
    auto receiver = std::make_unique<StreamReceiver>(std::move(accepted), epoll_.get(), id,
                                                     address_.incarnation, registry_);
    if (!receiver->watch()) continue;
    receivers_.emplace(id, std::move(receiver));
    strangers_.push_back(id);
    bound_strangers();
  }
}

// Who connects and says nothing takes no more than a few descriptors.
void StreamRail::bound_strangers() {
  while (!strangers_.empty()) {
    const auto it = receivers_.find(strangers_.front());
    const bool stranger = it != receivers_.end() && !it->second->greeted();
    if (stranger && strangers_.size() <= max_strangers()) return;
    if (stranger) receivers_.erase(it);
    strangers_.pop_front();
  }
}

// --- posting -------------------------------------------------------------------------------------

Result<Rail::Post> StreamRail::posted(std::uint64_t id, StreamSender& sender, Result<Post> result) {
  note_output(id, sender);
  return result;
}

Result<Rail::Post> StreamRail::send(RailPeer peer, std::span<const std::byte> message,
                                    Ticket& ticket) {
  StreamSender* const sender = find_sender(peer.value());
  if (sender == nullptr) return fail(Code::kInvalidArgument, "no such peer over tcp");
  // The kernel takes what is sent to a peer that has gone since, and nobody would hear of that.
  if (MonotonicClock::now() - looked_ > kStale) sender->check();
  return posted(peer.value(), *sender, sender->send(message, ticket));
}

Result<Rail::Post> StreamRail::read(RailPeer peer, LocalPiece into, Window from, Ticket& ticket) {
  StreamSender* const sender = find_sender(peer.value());
  if (sender == nullptr) return fail(Code::kInvalidArgument, "no such peer over tcp");
  return posted(peer.value(), *sender, sender->read(into, from, ticket));
}

Result<Rail::Post> StreamRail::write(RailPeer peer, LocalPiece from, Window to, Ticket& ticket) {
  StreamSender* const sender = find_sender(peer.value());
  if (sender == nullptr) return fail(Code::kInvalidArgument, "no such peer over tcp");
  return posted(peer.value(), *sender, sender->write(from, to, ticket));
}

void StreamRail::note_output(std::uint64_t id, const StreamEnd& end) {
  if (end.has_output() && std::ranges::find(output_, id) == output_.end()) output_.push_back(id);
}

// --- moving --------------------------------------------------------------------------------------

bool StreamRail::poll(RailUser& user) {
  bool busy = flush();
  // What ended a sleep came most likely from the peer that spoke last.
  if (std::exchange(woken_, false) && receive(talking_, user))
    busy = true;
  else
    busy |= look(user);
  busy |= flush();
  busy |= finish(user);
  return busy;
}

bool StreamRail::receive(std::uint64_t id, RailUser& user) {
  StreamEnd* const end = find(id);
  if (end == nullptr) return false;
  const bool any = end->receive(user, staging_);
  if (any) talking_ = id;
  note_output(id, *end);
  if (end->over()) receivers_.erase(id);
  return any;
}

bool StreamRail::look(RailUser& user) {
  bool any = false;
  std::array<epoll_event, 64> events;
  looked_ = MonotonicClock::now();
  const int count = epoll_wait(epoll_.get(), events.data(), events.size(), 0);
  for (int i = 0; i < count; ++i) {
    const std::uint64_t id = events[i].data.u64;
    if (id == kListenerTag) {
      accept_newcomers();
      any = true;
    } else if (StreamEnd* const end = find(id)) {
      end->ready(events[i].events);
      any |= receive(id, user);
    }
  }
  return any;
}

// Not a range-for: an end that has sent all leaves the list.
bool StreamRail::flush() {
  bool any = false;
  for (std::size_t i = 0; i < output_.size();) {
    StreamEnd* const end = find(output_[i]);
    if (end != nullptr) any |= end->flush();
    if (end != nullptr && end->has_output()) {
      ++i;
      continue;
    }
    if (end != nullptr) end->watch();
    if (end != nullptr && end->over()) receivers_.erase(output_[i]);
    output_[i] = output_.back();
    output_.pop_back();
  }
  return any;
}

bool StreamRail::finish(RailUser& user) {
  if (finished_.empty()) return false;
  // What the user begins may be finished at once; that is told by the next poll().
  telling_.swap(finished_);
  for (FinishedTicket& finished : telling_) user.done(*finished.ticket, std::move(finished.status));
  telling_.clear();
  return true;
}

void StreamRail::close() noexcept {
  senders_.clear();
  receivers_.clear();
}

bool StreamRail::arm() noexcept {
  if (!finished_.empty()) return false;
  for (const std::uint64_t id : output_) {
    StreamEnd* const end = find(id);
    if (end == nullptr) continue;
    if (!end->blocked() || !end->watch()) return false;
  }
  return true;
}

}  // namespace leeway::transport
