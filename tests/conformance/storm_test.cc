// Many short lives of endpoints on the hostile fabric, each drawn from its own seed: whatever the
// fabric does, each operation ends once, what is said to be there is there, and nothing else is
// touched. `conformance --fabric hostile --seed N --seeds 1` lives one of them again.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "tests/conformance/hostile_rail.h"
#include "tests/conformance/loopback_rail.h"
#include "tests/conformance/node.h"
#include "transport/endpoint_impl.h"

namespace leeway::conformance {
namespace {

constexpr std::size_t kNodes = 3, kOperations = 24, kPlace = 6'000;

// One endpoint of a storm. `received` belongs to its thread until it is closed.
struct Ship {
  std::unique_ptr<Endpoint> endpoint;
  Endpoint* its_own = nullptr;  // for its thread: stays while the other is being reset
  std::vector<std::byte> rail_address;
  std::vector<std::string> received;
  RegisteredMemory source, read, written;  // `written` has a place for each operation of each peer
};

struct Order {
  enum class Kind { kMessage, kRead, kWrite };
  Kind kind = Kind::kMessage;
  std::size_t from = 0, to = 0, index = 0, size = 0;
  milliseconds patience{};
  bool ended = false, good = false, released = false;
  int ends = 0;
  Code code{};

  std::size_t place() const { return (from * kOperations + index) * kPlace; }
  std::string text() const {
    return std::to_string(from) + " " + std::to_string(to) + " " + std::to_string(index);
  }
};

class Storm {
 public:
  explicit Storm(std::uint64_t seed) : random_(seed), mood_(Hostility::drawn(seed)) {
    for (std::size_t i = 0; i < kNodes; ++i) open(i, seed * kNodes + i);
    for (Ship& ship : ships_) {
      ship.source = allocate(ship);
      ship.read = allocate(ship);
      ship.written = allocate(ship);
      fill(ship.source, random_());
    }
    draw();
    run();
    check();
  }

  std::size_t wrong = 0;  // one number for all: the seed is what matters
  std::string what;

 private:
  enum class Fate { kPeace, kDisconnect, kClose, kLoseOne, kSilenceOne };

  void open(std::size_t i, std::uint64_t seed) {
    auto rail =
        std::make_unique<HostileRail>(std::make_unique<LoopbackRail>(), seed, mood_, losses_);
    Ship& ship = ships_[i];
    ship.rail_address = rail->info().address;
    std::vector<std::unique_ptr<transport::Rail>> rails;
    rails.push_back(std::move(rail));
    ship.endpoint = transport::endpoint_over(
        std::move(rails), {.fabric = "hostile", .max_transfer = random_() % 2 ? 1000 : kPlace});
    ship.its_own = ship.endpoint.get();
    ship.endpoint->start([&ship](std::span<const std::byte> bytes) {
      ship.received.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    });
  }

  RegisteredMemory allocate(Ship& ship) {
    return value_or_throw(
        ship.endpoint->allocate(kNodes * kOperations * kPlace, transport::Access::kPeers));
  }

  void draw() {
    fate_ = std::array{Fate::kPeace, Fate::kPeace,   Fate::kDisconnect,
                       Fate::kClose, Fate::kLoseOne, Fate::kSilenceOne}[random_() % 6];
    const bool hurried = random_() % 4 == 0;
    for (std::size_t from = 0; from < kNodes; ++from)
      for (std::size_t index = 0; index < kOperations; ++index) {
        Order order{.kind = static_cast<Order::Kind>(random_() % 3),
                    .from = from,
                    .to = (from + 1 + random_() % (kNodes - 1)) % kNodes,
                    .index = index,
                    .size = 1 + random_() % kPlace,
                    .patience = milliseconds(20'000)};
        // A peer that is silent costs its deadline, so that is short there.
        if (fate_ == Fate::kSilenceOne) order.patience = milliseconds(10 + random_() % 20);
        if (hurried && random_() % 4 == 0) order.patience = milliseconds(random_() % 4);
        orders_.push_back(order);
      }
  }

  void begin(Order& order) {
    Ship& from = ships_[order.from];
    Endpoint& endpoint = *from.its_own;
    const auto peer = endpoint.connect(to_address(order.to));
    if (!peer) return note("cannot connect");
    const TimePoint deadline = in(order.patience);
    const auto done = [this, &order](const Outcome& outcome) {
      ++order.ends;
      order.good = outcome.status.has_value();
      order.released = outcome.memory_released;
      if (!outcome.status) order.code = outcome.status.error().code;
      left_.fetch_sub(1);
      left_.notify_all();
    };
    const std::string text = order.text();
    switch (order.kind) {
      case Order::Kind::kMessage:
        return endpoint.send(*peer, std::as_bytes(std::span(text)), deadline, done);
      case Order::Kind::kRead:
        return endpoint.read(*peer, {&from.read, order.place(), order.size},
                             {to_source(order.to), order.place()}, deadline, done);
      case Order::Kind::kWrite:
        return endpoint.write(*peer, {&from.source, order.place(), order.size},
                              {to_written(order.to), order.place()}, deadline, done);
    }
  }

  std::vector<std::byte> to_address(std::size_t i) const { return addresses_[i]; }
  std::shared_ptr<const RemoteMemory> to_source(std::size_t i) const {
    return ships_[i].source.remote();
  }
  std::shared_ptr<const RemoteMemory> to_written(std::size_t i) const {
    return ships_[i].written.remote();
  }

  void run() {
    for (const Ship& ship : ships_) addresses_.push_back(ship.endpoint->info().address);
    left_ = static_cast<int>(orders_.size());
    for (std::size_t i = 0; i < kNodes; ++i)
      ships_[i].endpoint->post([this, i] {
        for (Order& order : orders_)
          if (order.from == i) begin(order);
      });
    switch (fate_) {
      case Fate::kPeace:
        break;
      case Fate::kDisconnect:
        ships_[0].endpoint->post([this] {
          if (const auto peer = ships_[0].its_own->connect(addresses_[1]))
            ships_[0].its_own->disconnect(*peer);
        });
        break;
      case Fate::kClose:
        ships_[1].endpoint.reset();
        break;
      case Fate::kLoseOne:
        losses_->lose(ships_[1].rail_address, Losses::How::kUnavailable);
        break;
      case Fate::kSilenceOne:
        losses_->lose(ships_[1].rail_address, Losses::How::kSilent);
        break;
    }
    const TimePoint until = soon();
    for (int left = left_; left > 0; left = left_) {
      if (MonotonicClock::now() > until) {
        note(std::to_string(left) + " operations never ended");
        break;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    // What is still on its way ends with the endpoints; one that is good is there already.
    if (undisturbed()) settle();
    for (Ship& ship : ships_) ship.endpoint.reset();
  }

  // Every message whose send went well comes, in its time.
  void settle() {
    const TimePoint until = soon();
    for (std::size_t i = 0; i < kNodes; ++i) {
      while (missing(i) != 0) {
        if (MonotonicClock::now() > until) return note("a message never came");
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    }
  }
  std::size_t missing(std::size_t to) {
    std::promise<std::size_t> count;
    ships_[to].endpoint->post([&] {
      count.set_value(static_cast<std::size_t>(std::ranges::count_if(orders_, [&](const Order& o) {
        return o.to == to && o.kind == Order::Kind::kMessage && o.good &&
               std::ranges::find(ships_[to].received, o.text()) == ships_[to].received.end();
      })));
    });
    return count.get_future().get();
  }

  bool undisturbed() const { return fate_ == Fate::kPeace || fate_ == Fate::kDisconnect; }
  bool touches_lost(const Order& order) const { return order.from == 1 || order.to == 1; }

  void check() {
    for (const Order& order : orders_) {
      if (order.ends != 1) note("an operation ended " + std::to_string(order.ends) + " times");
      const std::size_t place = order.place();
      const auto part = [&](const RegisteredMemory& memory) {
        return memory.bytes().subspan(place, kPlace);
      };
      const Ship &from = ships_[order.from], &to = ships_[order.to];
      if (order.good && order.kind == Order::Kind::kRead &&
          std::memcmp(part(from.read).data(), part(to.source).data(), order.size) != 0)
        note("a read that went well brought other bytes");
      if (order.good && order.kind == Order::Kind::kWrite &&
          std::memcmp(part(to.written).data(), part(from.source).data(), order.size) != 0)
        note("a write that went well is not there");
      const auto zero = [](std::byte byte) { return byte == std::byte{0}; };
      const auto beyond = [&](const RegisteredMemory& memory, std::size_t used) {
        return !std::ranges::all_of(part(memory).subspan(used), zero);
      };
      if (beyond(from.read, order.kind == Order::Kind::kRead ? order.size : 0))
        note("memory beside a read was touched");
      if (beyond(to.written, order.kind == Order::Kind::kWrite ? order.size : 0))
        note("memory beside a write was touched");
      const bool may_fail = order.patience < milliseconds(1000) ||
                            (fate_ == Fate::kDisconnect && order.from == 0 && order.to == 1) ||
                            (!undisturbed() && touches_lost(order));
      if (!order.good && !may_fail) note("an operation failed for no reason");
    }
    for (std::size_t i = 0; i < kNodes; ++i)
      for (const std::string& text : ships_[i].received)
        if (std::ranges::none_of(orders_, [&](const Order& order) {
              return order.to == i && order.kind == Order::Kind::kMessage && order.text() == text;
            }))
          note("a message came that nobody sent");
  }

  void note(std::string text) {
    const std::lock_guard lock(mutex_);
    if (wrong++ == 0) what = std::move(text);
  }

  std::mutex mutex_;
  std::mt19937_64 random_;
  Hostility mood_;
  Fate fate_ = Fate::kPeace;
  std::shared_ptr<Losses> losses_ = std::make_shared<Losses>();
  std::vector<Order> orders_;
  std::atomic<int> left_ = 0;
  std::vector<std::vector<std::byte>> addresses_;
  std::array<Ship, kNodes> ships_;  // last: their threads use the rest
};

}  // namespace

TEST_CASE("a thousand storms") {
  if (!fabric().hostile()) return;
  for (std::uint64_t seed = fabric().seed; seed < fabric().seed + fabric().seeds; ++seed) {
    const Storm storm(seed);
    CHECK_MESSAGE(storm.wrong == 0, "seed ", seed, ": ", storm.what, ", ", storm.wrong, " in all");
    if (storm.wrong != 0) break;
  }
}

}  // namespace leeway::conformance
