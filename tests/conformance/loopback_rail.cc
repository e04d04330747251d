#include "tests/conformance/loopback_rail.h"

#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "transport/providers.h"

namespace leeway::conformance {

using namespace transport;

namespace {

constexpr std::size_t kMessage = 8192;
constexpr std::size_t kMailbox = 256;  // messages that nobody has taken yet

struct Exchange {
  struct Memory {
    std::byte* data = nullptr;
    std::size_t size = 0;
    std::uint64_t rail = 0;
  };
  std::mutex mutex;
  std::uint64_t last_rail = 0, last_key = 0x10af;
  std::map<std::uint64_t, std::deque<std::vector<std::byte>>> mailboxes;  // by rail
  std::map<std::uint64_t, Memory> memories;                               // by key
};

Exchange& exchange() {
  static Exchange exchange;
  return exchange;
}

class LoopbackRegistration final : public Registration {
 public:
  LoopbackRegistration(std::uint64_t address, std::uint64_t key) : window_{address, key} {}
  ~LoopbackRegistration() override {
    const std::lock_guard lock(exchange().mutex);
    exchange().memories.erase(window_.key);
  }
  Window window() const noexcept override { return window_; }

 private:
  Window window_;
};

const ProviderTraits& traits() {
  static const ProviderTraits traits = [] {
    ProviderTraits made = provider_table().back();
    made.family = "loopback";
    made.waiting = Waiting::kPolling;
    made.maps_memory = false;
    return made;
  }();
  return traits;
}

}  // namespace

LoopbackRail::LoopbackRail() {
  const std::lock_guard lock(exchange().mutex);
  id_ = ++exchange().last_rail;
  exchange().mailboxes[id_];
  info_.traits = &traits();
  info_.provider = "loopback";
  info_.device = "memory";
  info_.printable = "loopback:" + std::to_string(id_);
  const auto* raw = reinterpret_cast<const std::byte*>(&id_);
  info_.address.assign(raw, raw + sizeof id_);
  info_.max_message = kMessage;
  info_.max_transfer = std::size_t{1} << 30;
}

LoopbackRail::~LoopbackRail() {
  const std::lock_guard lock(exchange().mutex);
  exchange().mailboxes.erase(id_);
}

std::string LoopbackRail::printable(std::span<const std::byte> address) const {
  std::uint64_t id = 0;
  if (address.size() != sizeof id) return "?";
  std::memcpy(&id, address.data(), sizeof id);
  return "loopback:" + std::to_string(id);
}

Result<std::unique_ptr<Registration>> LoopbackRail::enlist(const ForeignMemory& memory,
                                                           Access access) {
  const std::lock_guard lock(exchange().mutex);
  const std::uint64_t key = exchange().last_key += 0x9e3779b97f4a7c15;
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data);
  if (access == Access::kPeers) exchange().memories[key] = {memory.data, memory.size, id_};
  return std::make_unique<LoopbackRegistration>(address, key);
}

Result<RailPeer> LoopbackRail::connect(std::span<const std::byte> address) {
  std::uint64_t id = 0;
  if (address.size() != sizeof id) return fail(Code::kInvalidArgument, "no loopback address");
  std::memcpy(&id, address.data(), sizeof id);
  peers_.push_back(id);
  return RailPeer(peers_.size());
}

void LoopbackRail::disconnect(RailPeer peer) {
  if (peer.value() - 1 < peers_.size()) peers_[peer.value() - 1] = 0;
}

const std::uint64_t* LoopbackRail::find(RailPeer peer) const {
  const std::uint64_t place = peer.value() - 1;
  return place < peers_.size() && peers_[place] != 0 ? &peers_[place] : nullptr;
}

Result<Rail::Post> LoopbackRail::send(RailPeer peer, std::span<const std::byte> message,
                                      Ticket& ticket) {
  const std::uint64_t* id = find(peer);
  const std::lock_guard lock(exchange().mutex);
  const auto box = id != nullptr ? exchange().mailboxes.find(*id) : exchange().mailboxes.end();
  if (box == exchange().mailboxes.end()) return fail(Code::kUnavailable, "the peer is gone");
  if (box->second.size() >= kMailbox) return Post::kTryAgain;
  box->second.emplace_back(message.begin(), message.end());
  over_.push_back({&ticket, {}});
  return Post::kTaken;
}

Result<Rail::Post> LoopbackRail::begin(RailPeer peer, Copy copy) {
  const std::uint64_t* id = find(peer);
  if (id == nullptr) return fail(Code::kUnavailable, "the peer is gone");
  copy.rail = *id;
  copies_.push_back(copy);
  return Post::kTaken;
}

Result<Rail::Post> LoopbackRail::read(RailPeer peer, LocalPiece into, Window from, Ticket& ticket) {
  return begin(peer, {.write = false, .local = into, .remote = from, .ticket = &ticket});
}

Result<Rail::Post> LoopbackRail::write(RailPeer peer, LocalPiece from, Window to, Ticket& ticket) {
  return begin(peer, {.write = true, .local = from, .remote = to, .ticket = &ticket});
}

bool LoopbackRail::poll(RailUser& user) {
  std::deque<std::vector<std::byte>> messages;
  {
    Exchange& all = exchange();
    const std::lock_guard lock(all.mutex);
    messages.swap(all.mailboxes.at(id_));
    for (const Copy& copy : std::exchange(copies_, {})) {
      const auto memory = all.memories.find(copy.remote.key);
      Status status;
      if (!all.mailboxes.contains(copy.rail)) {
        status = fail(Code::kUnavailable, "the peer is gone");
      } else if (memory == all.memories.end() || memory->second.rail != copy.rail) {
        status = fail(Code::kRefused, "the peer knows no such memory");
      } else {
        const Exchange::Memory& there = memory->second;
        const auto base = reinterpret_cast<std::uintptr_t>(there.data);
        const std::uint64_t offset = copy.remote.address - base;
        if (copy.remote.address < base || offset > there.size ||
            copy.local.size > there.size - offset)
          status = fail(Code::kRefused, "outside of the peer's memory");
        else if (copy.write)
          std::memcpy(there.data + offset, copy.local.data, copy.local.size);
        else
          std::memcpy(copy.local.data, there.data + offset, copy.local.size);
      }
      over_.push_back({copy.ticket, std::move(status)});
    }
  }
  const bool moved = !messages.empty() || !over_.empty();
  for (const auto& message : messages) user.message(message);
  for (Over& over : std::exchange(over_, {})) user.done(*over.ticket, std::move(over.status));
  return moved;
}

}  // namespace leeway::conformance
