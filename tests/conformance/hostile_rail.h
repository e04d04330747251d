// A rail around another one that does whatever a fabric may do at its worst: it holds messages and
// transfers back, so that they overtake each other, gives messages twice, lets completions wait,
// says "try again" in storms, and loses peers. EFA keeps no order: this is where that is tested.
//
// All of it drawn from a seed, so the same calls meet the same decisions again (threads still run
// as they run). Contract in transport/rail.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "common/monotonic.h"
#include "transport/rail.h"

namespace leeway::conformance {

// How bad it is; probabilities of each post, message or completion.
struct Hostility {
  double storm = 0;  // that a storm of "try again" begins
  std::uint32_t storm_posts = 0;
  double held_message = 0, held_transfer = 0, held_completion = 0;
  std::chrono::microseconds hold{0};  // at most
  double twice = 0;                   // that a message comes twice

  // One of many moods.
  static Hostility drawn(std::uint64_t seed);
};

// Who is lost; shared by the rails of a test, called from any thread.
class Losses {
 public:
  enum class How {
    kUnavailable,  // what is under way to it comes back so
    kSilent,       // nothing comes back while the rail lives
  };
  void lose(const std::vector<std::byte>& address, How how);
  void find(const std::vector<std::byte>& address);  // it is back
  std::optional<How> of(const std::vector<std::byte>& address) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::vector<std::byte>, How> lost_;
};

class HostileRail final : public transport::Rail, private transport::RailUser {
 public:
  HostileRail(std::unique_ptr<transport::Rail> inner, std::uint64_t seed,
              const Hostility& hostility,
              std::shared_ptr<const Losses> losses = std::make_shared<Losses>());

  const transport::RailInfo& info() const noexcept override { return inner_->info(); }
  std::string printable(std::span<const std::byte> address) const override {
    return inner_->printable(address);
  }
  Result<std::unique_ptr<transport::Registration>> enlist(const transport::ForeignMemory& memory,
                                                          transport::Access access) override {
    return inner_->enlist(memory, access);
  }
  Result<transport::RailPeer> connect(std::span<const std::byte> address) override;
  void disconnect(transport::RailPeer peer) override;
  Result<Post> send(transport::RailPeer peer, std::span<const std::byte> message,
                    transport::Ticket& ticket) override;
  Result<Post> read(transport::RailPeer peer, transport::LocalPiece into, transport::Window from,
                    transport::Ticket& ticket) override;
  Result<Post> write(transport::RailPeer peer, transport::LocalPiece from, transport::Window to,
                     transport::Ticket& ticket) override;
  bool poll(transport::RailUser& user) override;
  int descriptor() const noexcept override { return -1; }
  bool arm() noexcept override { return true; }
  void disarm() noexcept override {}

 private:
  // Something on its way: held back, with the inner rail, or over and not yet told.
  struct Held final : transport::Ticket {
    enum class Kind { kMessage, kRead, kWrite };
    enum class Stage { kBefore, kInside, kAfter };
    Kind kind = Kind::kMessage;
    Stage stage = Stage::kBefore;
    TimePoint due{};
    transport::RailPeer peer;
    transport::Ticket* ticket = nullptr;  // null: the second of two equal messages
    std::vector<std::byte> message;
    transport::LocalPiece local;
    transport::Window remote;
    Status status;
    std::list<std::unique_ptr<Held>>::iterator place{};
  };

  // The inner rail's word.
  void message(std::span<const std::byte> bytes) override;
  void done(transport::Ticket& ticket, Status status) override;

  Result<Post> hold(std::unique_ptr<Held> held, double probability);
  bool chance(double probability);
  Duration some_time();
  std::optional<Losses::How> lost(transport::RailPeer peer) const;
  void post(Held& held);

  Hostility hostility_;
  std::shared_ptr<const Losses> losses_;
  std::mt19937_64 random_;
  std::uint32_t storm_left_ = 0;
  std::map<std::uint64_t, std::vector<std::byte>> peers_;  // addresses
  std::list<std::unique_ptr<Held>> held_;
  transport::RailUser* user_ = nullptr;     // during poll()
  std::unique_ptr<transport::Rail> inner_;  // first to go: it gives up what is held here
};

}  // namespace leeway::conformance
