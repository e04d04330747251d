#include "transport/host_rail.h"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "transport/providers.h"

namespace leeway::transport {
namespace {

// What memory copies make, roughly; for sharing work among rails.
constexpr std::uint32_t kMegabits = 100'000;

// Epoll tags, beside Bell::kTag; those of senders and receivers come after.
constexpr std::uint64_t kListenerTag = 1;
constexpr std::uint64_t kRegistryTag = 2;

// A look at the sockets is a system call, which can cost more than a message; beside a copy it
// costs nothing.
constexpr unsigned kPollsForOneLook = 8;
constexpr int kNewcomersAtOnce = 64;

class HostRegistration final : public Registration {
 public:
  HostRegistration() = default;  // Access::kOwn: nothing for anybody
  HostRegistration(HostRegistry& registry, const ForeignMemory& memory)
      : registry_(&registry), key_(registry.enlist(memory.descriptor, memory.size)) {}
  ~HostRegistration() override {
    if (registry_ != nullptr) registry_->drop(key_);
  }
  HostRegistration(const HostRegistration&) = delete;
  HostRegistration& operator=(const HostRegistration&) = delete;

  Window window() const noexcept override { return {.address = 0, .key = key_}; }

 private:
  HostRegistry* registry_ = nullptr;
  std::uint64_t key_ = 0;
};

void watch(const FileDescriptor& epoll, int descriptor, std::uint64_t tag) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = tag;
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, descriptor, &event) != 0)
    throw ConfigError(fmt::format("epoll: {}", std::strerror(errno)));
}

}  // namespace

HostRail::HostRail() : epoll_(epoll_create1(EPOLL_CLOEXEC)), last_id_(kRegistryTag) {
  if (!epoll_)
    throw ConfigError(fmt::format("descriptors for peers of this host: {}; raise `ulimit -n`",
                                  std::strerror(errno)));
  const std::string name = random_host_name();
  acceptor_.emplace("shm", listen_as(name));
  watch(epoll_, acceptor_->descriptor(), kListenerTag);
  watch(epoll_, registry_.news(), kRegistryTag);
  info_.traits = &family_traits("shm");
  info_.provider = "leeway-shm";
  info_.device = "memory";
  info_.printable = fmt::format("shm://{}", name);
  const auto bytes = std::as_bytes(std::span(name));
  info_.address.assign(bytes.begin(), bytes.end());
  info_.max_message = kRingMessage;
  info_.max_transfer = std::numeric_limits<std::size_t>::max();
  info_.megabits = kMegabits;
}

HostRail::~HostRail() = default;

std::string HostRail::printable(std::span<const std::byte> address) const {
  const std::string name(reinterpret_cast<const char*>(address.data()), address.size());
  return is_host_name(name) ? fmt::format("shm://{}", name) : "?";
}

Result<std::unique_ptr<Registration>> HostRail::enlist(const ForeignMemory& memory, Access access) {
  if (access == Access::kOwn) return std::make_unique<HostRegistration>();
  if (memory.descriptor < 0)
    return fail(Code::kInvalidArgument, "memory for peers of this host has to be shareable");
  return std::make_unique<HostRegistration>(registry_, memory);
}

HostSender* HostRail::find(std::uint64_t id) noexcept {
  const auto it = senders_.find(id);
  return it == senders_.end() ? nullptr : it->second.get();
}

Result<RailPeer> HostRail::connect(std::span<const std::byte> address) {
  std::string name(reinterpret_cast<const char*>(address.data()), address.size());
  if (!is_host_name(name)) return fail(Code::kInvalidArgument, "no address of a peer of this host");
  const std::uint64_t id = ++last_id_;
  auto sender = HostSender::make(std::move(name), epoll_.get(), id, finished_);
  if (!sender) return tl::unexpected(std::move(sender).error());
  if (!(*sender)->connected()) connecting_.push_back(id);
  senders_.emplace(id, std::move(*sender));
  return RailPeer(id);
}

void HostRail::disconnect(RailPeer peer) {
  const auto it = senders_.find(peer.value());
  if (it == senders_.end()) return;
  it->second->give_up(Code::kUnavailable, "the connection was closed here");
  senders_.erase(it);
}

Result<Rail::Post> HostRail::send(RailPeer peer, std::span<const std::byte> message,
                                  Ticket& ticket) {
  HostSender* const sender = find(peer.value());
  if (sender == nullptr) return fail(Code::kInvalidArgument, "no such peer of this host");
  return sender->send(message, ticket);
}

Result<Rail::Post> HostRail::read(RailPeer peer, LocalPiece into, Window from, Ticket& ticket) {
  return transfer(HostSender::Direction::kRead, peer, into, from, ticket);
}

Result<Rail::Post> HostRail::write(RailPeer peer, LocalPiece from, Window to, Ticket& ticket) {
  return transfer(HostSender::Direction::kWrite, peer, from, to, ticket);
}

std::shared_ptr<const std::byte> HostRail::map(RailPeer peer, Window from, std::size_t size) {
  HostSender* const sender = find(peer.value());
  return sender != nullptr ? sender->map(from, size) : nullptr;
}

Result<Rail::Post> HostRail::transfer(HostSender::Direction direction, RailPeer peer,
                                      LocalPiece local, Window remote, Ticket& ticket) {
  HostSender* const sender = find(peer.value());
  if (sender == nullptr) return fail(Code::kInvalidArgument, "no such peer of this host");
  const bool in_line = sender->copying();
  auto posted = sender->transfer(direction, local, remote, ticket);
  if (!in_line) line_up(peer.value(), *sender);
  return posted;
}

void HostRail::line_up(std::uint64_t id, const HostSender& sender) {
  if (sender.copying()) copying_.push_back(id);
}

bool HostRail::poll(RailUser& user) {
  bool busy = read_messages(user);
  if (look_soon_ || !copying_.empty() || ++polls_ % kPollsForOneLook == 0)
    busy |= look_at_sockets();
  busy |= copy_slice();
  busy |= finish(user);
  return busy;
}

// The only place, with finish(), where the user is called: it cannot change receivers_.
bool HostRail::read_messages(RailUser& user) {
  bool any = false;
  for (auto it = receivers_.begin(); it != receivers_.end();) {
    any |= it->second->read_messages(user, message_);
    if (it->second->over())
      it = receivers_.erase(it);
    else
      ++it;
  }
  return any;
}

bool HostRail::look_at_sockets() {
  look_soon_ = false;
  bool any = false;
  std::erase_if(connecting_, [&](std::uint64_t id) {
    HostSender* const sender = find(id);
    if (sender == nullptr) return true;
    sender->connect();
    any |= sender->connected();
    return sender->connected();
  });
  std::array<epoll_event, 64> events;
  const int count = epoll_wait(epoll_.get(), events.data(), events.size(), 0);
  for (int i = 0; i < count; ++i) any |= look_at(events[i].data.u64, events[i].events);
  return any;
}

bool HostRail::look_at(std::uint64_t tag, std::uint32_t events) {
  if (tag == kListenerTag) {
    accept_newcomers();
    return true;
  }
  if (tag == kRegistryTag) {
    retire_dropped();
    return true;
  }
  if (HostSender* const sender = find(tag)) {
    const bool in_line = sender->copying();
    const bool any = sender->look(events);
    if (!in_line) line_up(tag, *sender);
    return any;
  }
  const auto it = receivers_.find(tag);
  return it != receivers_.end() && it->second->look(events);
}

void HostRail::accept_newcomers() {
  for (int i = 0; i < kNewcomersAtOnce; ++i) {
    FileDescriptor accepted = acceptor_->next();
    if (!accepted) return;
    const std::uint64_t id = ++last_id_;
    HostSocket socket(std::move(accepted), epoll_.get(), id);
    // Anybody in the network namespace may knock; they are closed without a word.
    if (!socket.trusted() || !socket.watch()) continue;
    receivers_.emplace(id, std::make_unique<HostReceiver>(std::move(socket), registry_));
  }
}

void HostRail::retire_dropped() {
  for (const std::uint64_t key : registry_.take_dropped())
    for (const auto& [id, receiver] : receivers_) receiver->retire(key);
}

// One peer's turn.
bool HostRail::copy_slice() {
  while (!copying_.empty()) {
    const std::uint64_t id = copying_.front();
    copying_.pop_front();
    HostSender* const sender = find(id);
    if (sender == nullptr || !sender->copying()) continue;  // gone since
    sender->copy_slice();
    line_up(id, *sender);
    return true;
  }
  return false;
}

bool HostRail::finish(RailUser& user) {
  if (finished_.empty()) return false;
  // What the user begins may be finished at once; that is told by the next poll().
  telling_.swap(finished_);
  for (FinishedTicket& finished : telling_) user.done(*finished.ticket, std::move(finished.status));
  telling_.clear();
  return true;
}

bool HostRail::arm() noexcept {
  if (!finished_.empty() || !copying_.empty()) return false;
  for (const auto& [id, receiver] : receivers_) receiver->set_asleep(true);
  for (const auto& [id, receiver] : receivers_)
    if (receiver->has_messages()) {
      disarm();
      return false;
    }
  return true;
}

void HostRail::disarm() noexcept {
  for (const auto& [id, receiver] : receivers_) receiver->set_asleep(false);
  look_soon_ = true;
}

}  // namespace leeway::transport
