#include "tests/bench/transport_bench.h"

#include <fmt/format.h>

#include <future>
#include <stdexcept>

#include "tests/bench/peer_process.h"
#include "tests/bench/raw_fabric.h"
#include "tests/bench/summary.h"

namespace leeway::bench {
namespace {

using transport::Endpoint;
using transport::Outcome;
using transport::Peer;
using transport::RegisteredMemory;

constexpr std::size_t kMemory = std::size_t{32} << 20;
constexpr std::size_t kPerMeasurement = std::size_t{256} << 20;
constexpr std::size_t kDepth = 4;

// The same transfers as RawFabric::transfer, through an Endpoint: the next begins in a completion.
class OurTransfers {
 public:
  OurTransfers(const std::string& fabric, const Reachable& peer)
      : endpoint_(Endpoint::open({.fabric = fabric})),
        memory_(value_or_throw(endpoint_->allocate(kMemory, transport::Access::kPeers))),
        remote_(std::make_shared<transport::RemoteMemory>(1, peer.memory)) {
    endpoint_->start([](std::span<const std::byte>) {});
    std::promise<Result<Peer>> connected;
    endpoint_->post([&] { connected.set_value(endpoint_->connect(peer.address)); });
    peer_ = value_or_throw(connected.get_future().get());
  }

  double transfer(Move move, std::size_t size, std::size_t count) {
    move_ = move;
    size_ = size;
    count_ = count;
    begun_ = ended_ = 0;
    failure_.clear();
    std::promise<void> over;
    over_ = &over;
    const TimePoint start = MonotonicClock::now();
    endpoint_->post([this] {
      for (std::size_t i = 0; i < kDepth; ++i) begin();
    });
    over.get_future().get();
    if (!failure_.empty()) throw std::runtime_error(failure_);
    return seconds_between(start, MonotonicClock::now());
  }

 private:
  void begin() {  // on the endpoint's thread
    if (begun_ == count_) return;
    const std::size_t at = begun_++ % (kMemory / size_) * size_;
    const transport::LocalRange local{&memory_, at, size_};
    const transport::RemoteRange remote{remote_, at};
    const TimePoint deadline = MonotonicClock::now() + std::chrono::seconds(30);
    const auto done = [this](const Outcome& outcome) {
      if (!outcome.status) failure_ = outcome.status.error().message;
      begin();
      if (++ended_ == count_) over_->set_value();
    };
    if (move_ == Move::kRead)
      endpoint_->read(peer_, local, remote, deadline, done);
    else
      endpoint_->write(peer_, local, remote, deadline, done);
  }

  std::unique_ptr<Endpoint> endpoint_;
  RegisteredMemory memory_;
  const std::shared_ptr<const transport::RemoteMemory> remote_;
  Peer peer_;
  Move move_ = Move::kRead;
  std::size_t size_ = 0, count_ = 0, begun_ = 0, ended_ = 0;
  std::string failure_;
  std::promise<void>* over_ = nullptr;
};

}  // namespace

std::vector<Case> run_transport(const TransportOptions& options) {
  RawFabric raw(options.fabric, kMemory);  // first: a fabric that is not there is said once
  PeerProcess peer(options.fabric, kMemory);
  OurTransfers ours(options.fabric, peer.endpoint());
  raw.connect(peer.raw().address, peer.raw().memory);

  struct Shape {
    Move move;
    std::size_t mebibytes;
  };
  const Shape shapes[] = {{Move::kRead, 1}, {Move::kRead, 4}, {Move::kWrite, 1}, {Move::kWrite, 4}};
  std::vector<Rounds> rounds(std::size(shapes));
  // The first round warms connections and pages, and counts for nothing.
  for (int round = -1; round < options.rounds; ++round) {
    for (std::size_t i = 0; i < std::size(shapes); ++i) {
      const std::size_t size = shapes[i].mebibytes << 20;
      const std::size_t count = kPerMeasurement / size;
      const double bytes = static_cast<double>(size * count);
      double our_rate = 0, raw_rate = 0;
      const auto measure_ours = [&] {
        our_rate = bytes / ours.transfer(shapes[i].move, size, count) / 1e9;
      };
      const auto measure_raw = [&] {
        peer.spin_raw(true);
        raw_rate = bytes / raw.transfer(shapes[i].move, size, count, kDepth) / 1e9;
        peer.spin_raw(false);
      };
      // In turn, so that a machine that slows down or speeds up favours neither.
      if (round % 2 == 0) {
        measure_ours();
        measure_raw();
      } else {
        measure_raw();
        measure_ours();
      }
      if (round >= 0) rounds[i].add(our_rate, raw_rate);
    }
  }
  std::vector<Case> cases;
  for (std::size_t i = 0; i < std::size(shapes); ++i)
    cases.push_back(rounds[i].summary(
        fmt::format("{} {} {} MiB", options.fabric,
                    shapes[i].move == Move::kRead ? "read" : "write", shapes[i].mebibytes),
        "GB/s"));
  return cases;
}

}  // namespace leeway::bench
