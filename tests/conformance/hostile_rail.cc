#include "tests/conformance/hostile_rail.h"

#include <utility>

namespace leeway::conformance {

using namespace transport;

Hostility Hostility::drawn(std::uint64_t seed) {
  std::mt19937_64 random(seed * 0x9e3779b97f4a7c15 + 1);
  const auto one_of = [&](std::initializer_list<double> values) {
    return values.begin()[random() % values.size()];
  };
  Hostility mood;
  mood.storm = one_of({0, 0, 0.01, 0.2});
  mood.storm_posts = static_cast<std::uint32_t>(one_of({1, 10, 100}));
  mood.held_message = one_of({0, 0.1, 0.5, 1});
  mood.held_transfer = one_of({0, 0.1, 0.5, 1});
  mood.held_completion = one_of({0, 0, 0.2, 1});
  mood.hold = std::chrono::microseconds(static_cast<int>(one_of({20, 200, 200, 2000})));
  mood.twice = one_of({0, 0.05, 0.5, 1});
  return mood;
}

void Losses::lose(const std::vector<std::byte>& address, How how) {
  const std::lock_guard lock(mutex_);
  lost_[address] = how;
}

void Losses::find(const std::vector<std::byte>& address) {
  const std::lock_guard lock(mutex_);
  lost_.erase(address);
}

std::optional<Losses::How> Losses::of(const std::vector<std::byte>& address) const {
  const std::lock_guard lock(mutex_);
  const auto found = lost_.find(address);
  return found == lost_.end() ? std::nullopt : std::optional(found->second);
}

HostileRail::HostileRail(std::unique_ptr<Rail> inner, std::uint64_t seed,
                         const Hostility& hostility, std::shared_ptr<const Losses> losses)
    : hostility_(hostility), losses_(std::move(losses)), random_(seed), inner_(std::move(inner)) {}

bool HostileRail::chance(double probability) {
  return std::uniform_real_distribution<>(0, 1)(random_) < probability;
}

Duration HostileRail::some_time() {
  return std::chrono::nanoseconds(
      random_() %
      static_cast<std::uint64_t>(std::chrono::nanoseconds(hostility_.hold).count() + 1));
}

std::optional<Losses::How> HostileRail::lost(RailPeer peer) const {
  // A rail that is lost itself reaches nobody.
  if (const auto own = losses_->of(inner_->info().address)) return own;
  const auto known = peers_.find(peer.value());
  return known == peers_.end() ? std::nullopt : losses_->of(known->second);
}

Result<RailPeer> HostileRail::connect(std::span<const std::byte> address) {
  auto peer = inner_->connect(address);
  if (peer) peers_[peer->value()].assign(address.begin(), address.end());
  return peer;
}

void HostileRail::disconnect(RailPeer peer) { inner_->disconnect(peer); }

Result<Rail::Post> HostileRail::hold(std::unique_ptr<Held> held, double probability) {
  const auto gone = lost(held->peer);
  if (gone == Losses::How::kUnavailable) return fail(Code::kUnavailable, "the peer is lost");
  if (storm_left_ == 0 && chance(hostility_.storm)) storm_left_ = hostility_.storm_posts;
  if (storm_left_ != 0) {
    --storm_left_;
    return Post::kTryAgain;
  }
  held->due = MonotonicClock::now();
  if (chance(probability)) held->due += some_time();
  held_.push_back(std::move(held));
  held_.back()->place = std::prev(held_.end());
  return Post::kTaken;
}

Result<Rail::Post> HostileRail::send(RailPeer peer, std::span<const std::byte> message,
                                     Ticket& ticket) {
  const auto make = [&](Ticket* its) {
    auto held = std::make_unique<Held>();
    held->peer = peer;
    held->ticket = its;
    held->message.assign(message.begin(), message.end());
    return held;
  };
  auto taken = hold(make(&ticket), hostility_.held_message);
  if (taken && *taken == Post::kTaken && chance(hostility_.twice)) {
    auto second = make(nullptr);
    second->due = MonotonicClock::now() + some_time();
    held_.push_back(std::move(second));
    held_.back()->place = std::prev(held_.end());
  }
  return taken;
}

Result<Rail::Post> HostileRail::read(RailPeer peer, LocalPiece into, Window from, Ticket& ticket) {
  auto held = std::make_unique<Held>();
  held->kind = Held::Kind::kRead;
  held->peer = peer;
  held->ticket = &ticket;
  held->local = into;
  held->remote = from;
  return hold(std::move(held), hostility_.held_transfer);
}

Result<Rail::Post> HostileRail::write(RailPeer peer, LocalPiece from, Window to, Ticket& ticket) {
  auto held = std::make_unique<Held>();
  held->kind = Held::Kind::kWrite;
  held->peer = peer;
  held->ticket = &ticket;
  held->local = from;
  held->remote = to;
  return hold(std::move(held), hostility_.held_transfer);
}

void HostileRail::post(Held& held) {
  auto posted = held.kind == Held::Kind::kMessage ? inner_->send(held.peer, held.message, held)
                : held.kind == Held::Kind::kRead
                    ? inner_->read(held.peer, held.local, held.remote, held)
                    : inner_->write(held.peer, held.local, held.remote, held);
  if (!posted) {
    held.status = tl::unexpected(std::move(posted).error());
    held.stage = Held::Stage::kAfter;
  } else if (*posted == Post::kTaken) {
    held.stage = Held::Stage::kInside;
  }
}

void HostileRail::message(std::span<const std::byte> bytes) {
  if (!losses_->of(inner_->info().address)) user_->message(bytes);
}

void HostileRail::done(Ticket& ticket, Status status) {
  auto& held = static_cast<Held&>(ticket);
  held.stage = Held::Stage::kAfter;
  held.status = std::move(status);
  held.due = MonotonicClock::now();
  if (chance(hostility_.held_completion)) held.due += some_time();
}

bool HostileRail::poll(RailUser& user) {
  user_ = &user;
  bool moved = inner_->poll(*this);
  const TimePoint now = MonotonicClock::now();
  // What is begun from inside done() comes to the end of the list, or waits for the next poll().
  const std::size_t count = held_.size();
  auto next = held_.begin();
  for (std::size_t i = 0; i < count; ++i) {
    Held& held = **next++;
    const auto gone = lost(held.peer);
    if (gone == Losses::How::kSilent) continue;
    if (gone && held.stage == Held::Stage::kBefore) {
      held.stage = Held::Stage::kAfter;
      held.status = fail(Code::kUnavailable, "the peer is lost");
    }
    if (held.due > now) continue;
    if (held.stage == Held::Stage::kBefore) post(held);
    if (held.stage != Held::Stage::kAfter) continue;
    const auto owner = std::move(*held.place);
    held_.erase(held.place);
    moved = true;
    if (held.ticket != nullptr) user.done(*held.ticket, std::move(held.status));
  }
  user_ = nullptr;
  return moved;
}

}  // namespace leeway::conformance
