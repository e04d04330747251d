// Endpoints with several rails: transfers go over all of them, by their rates, and one that fails,
// or says nothing any more, costs a while and nothing else.
#include <doctest/doctest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <optional>
#include <sstream>

#include "tests/conformance/device_rail.h"
#include "tests/conformance/hostile_rail.h"
#include "tests/conformance/loopback_rail.h"
#include "tests/conformance/node.h"
#include "tests/unit/transport/fake_cuda.h"
#include "transport/endpoint_impl.h"
#include "transport/gpu_buffer.h"
#include "transport/providers.h"

namespace leeway::conformance {
namespace {

using transport::LocalPiece;
using transport::Rail;
using transport::RailInfo;
using transport::RailPeer;
using transport::Ticket;
using transport::testing::FakeCuda;

constexpr std::size_t kBytes = std::size_t{8} << 20;

// Another rate, and how many bytes it was asked to move.
class MeasuredRail : public Rail {
 public:
  MeasuredRail(std::unique_ptr<Rail> inner, std::uint32_t megabits, bool near,
               std::atomic<std::size_t>& bytes)
      : info_(inner->info()), inner_(std::move(inner)), bytes_(bytes) {
    info_.megabits = megabits;
    info_.near = near;
  }
  const RailInfo& info() const noexcept override { return info_; }
  std::string printable(std::span<const std::byte> address) const override {
    return inner_->printable(address);
  }
  Result<std::unique_ptr<transport::Registration>> enlist(const transport::ForeignMemory& memory,
                                                          transport::Access access) override {
    return inner_->enlist(memory, access);
  }
  Result<RailPeer> connect(std::span<const std::byte> address) override {
    return inner_->connect(address);
  }
  void disconnect(RailPeer peer) override { inner_->disconnect(peer); }
  Result<Post> send(RailPeer peer, std::span<const std::byte> message, Ticket& ticket) override {
    return inner_->send(peer, message, ticket);
  }
  Result<Post> read(RailPeer peer, LocalPiece into, Window from, Ticket& ticket) override {
    bytes_ += into.size;
    return inner_->read(peer, into, from, ticket);
  }
  Result<Post> write(RailPeer peer, LocalPiece from, Window to, Ticket& ticket) override {
    bytes_ += from.size;
    return inner_->write(peer, from, to, ticket);
  }
  bool poll(transport::RailUser& user) override { return inner_->poll(user); }
  int descriptor() const noexcept override { return inner_->descriptor(); }
  bool arm() noexcept override { return inner_->arm(); }
  void disarm() noexcept override { inner_->disarm(); }

 protected:
  RailInfo info_;

 private:
  std::unique_ptr<Rail> inner_;
  std::atomic<std::size_t>& bytes_;
};

// The kernel takes messages for it, and no more is ever heard of anything.
class DeafRail final : public MeasuredRail {
 public:
  explicit DeafRail(std::atomic<std::size_t>& bytes)
      : MeasuredRail(std::make_unique<LoopbackRail>(), 100, true, bytes) {
    static const transport::ProviderTraits kTraits = [this] {
      transport::ProviderTraits made = *info().traits;
      made.sends_arrive = false;
      return made;
    }();
    info_.traits = &kTraits;
  }
  Result<Post> read(RailPeer, LocalPiece, transport::Window, Ticket&) override {
    return Post::kTaken;
  }
};

// An endpoint with a fast rail and one of a third of its rate.
struct Ship {
  std::shared_ptr<Losses> losses = std::make_shared<Losses>();
  std::vector<std::vector<std::byte>> rails;  // addresses
  std::atomic<std::size_t> moved[2] = {0, 0};
  Node node;

  // `far`: the rail that is far from what the process computes on, if one is.
  explicit Ship(std::optional<std::size_t> far = std::nullopt,
                std::array<std::uint32_t, 2> megabits = {300, 100},
                const transport::EndpointOptions& options = {}) {
    std::vector<std::unique_ptr<Rail>> made;
    for (std::size_t i = 0; i < 2; ++i) {
      auto loopback = std::make_unique<LoopbackRail>();
      rails.push_back(loopback->info().address);
      auto lossy = std::make_unique<HostileRail>(std::move(loopback), 1 + i, Hostility{}, losses);
      made.push_back(
          std::make_unique<MeasuredRail>(std::move(lossy), megabits[i], far != i, moved[i]));
    }
    node.endpoint = transport::endpoint_over(std::move(made), options);
    node.endpoint->start([this](std::span<const std::byte>) { ++messages; });
  }
  ~Ship() { node.endpoint.reset(); }
  std::atomic<int> messages = 0;
};

}  // namespace

TEST_CASE("rails: a transfer goes over all, by their rates") {
  Ship a, b;
  const Peer peer = a.node.connect(b.node);
  const RegisteredMemory here = a.node.memory(kBytes), there = b.node.memory(kBytes);
  CHECK(there.remote()->size() == 2);
  fill(there, 1);
  REQUIRE(a.node.read(peer, {&here, 0, kBytes}, at(there)).status.has_value());
  CHECK(same(here, there));
  fill(here, 2);
  REQUIRE(a.node.write(peer, {&here, 0, kBytes}, at(there)).status.has_value());
  CHECK(same(here, there));
  CHECK(a.moved[0] + a.moved[1] == 2 * kBytes);
  CHECK(a.moved[1] > kBytes / 8);
  CHECK(a.moved[0] > 2 * a.moved[1]);
}

TEST_CASE("rails: the slower end of a link counts") {
  Ship a(std::nullopt, {100, 100}), b;  // b: 300 and 100
  const Peer peer = a.node.connect(b.node);
  const RegisteredMemory here = a.node.memory(kBytes), there = b.node.memory(kBytes);
  REQUIRE(a.node.write(peer, {&here, 0, kBytes}, at(there)).status.has_value());
  CHECK(a.moved[0] == kBytes / 2);
  CHECK(a.moved[1] == kBytes / 2);
}

TEST_CASE("rails: those near a GPU at either end carry all; the far one when they have failed") {
  for (const bool at_peer : {false, true}) {
    CAPTURE(at_peer);
    constexpr std::size_t kFar = 0;
    Ship a(at_peer ? std::nullopt : std::optional(kFar)),
        b(at_peer ? std::optional(kFar) : std::nullopt);
    const Peer peer = a.node.connect(b.node);
    const RegisteredMemory here = a.node.memory(kBytes), there = b.node.memory(kBytes);
    fill(there, 7);
    REQUIRE(a.node.read(peer, {&here, 0, kBytes}, at(there)).status.has_value());
    CHECK(same(here, there));
    CHECK(a.moved[kFar] == 0);
    CHECK(a.moved[1] == kBytes);

    a.losses->lose(b.rails[1], Losses::How::kUnavailable);
    fill(here, 8);
    REQUIRE(a.node.write(peer, {&here, 0, kBytes}, at(there)).status.has_value());
    CHECK(same(here, there));
    CHECK(a.moved[kFar] > 0);
  }
}

TEST_CASE("rails: what a failed one had goes out by the others, messages too") {
  for (const std::size_t lost : {std::size_t{0}, std::size_t{1}}) {
    CAPTURE(lost);
    Ship a, b;
    const Peer peer = a.node.connect(b.node);
    const RegisteredMemory here = a.node.memory(kBytes), there = b.node.memory(kBytes);
    fill(there, 3);
    a.losses->lose(b.rails[lost], Losses::How::kUnavailable);
    const Outcome read = a.node.read(peer, {&here, 0, kBytes}, at(there));
    REQUIRE(read.status.has_value());
    CHECK(read.memory_released);
    CHECK(same(here, there));
    CHECK(a.node.send(peer, "still here").status.has_value());
  }
}

TEST_CASE("rails: all that was under way on one that fails is one failure") {
  Ship a, b;
  const Peer peer = a.node.connect(b.node);
  const RegisteredMemory here = a.node.memory(kBytes), there = b.node.memory(kBytes);
  fill(here, 9);
  Tally tally;
  a.node.on_thread([&] {
    a.node.endpoint->write(peer, {&here, 0, kBytes}, at(there), soon(), tally.next());
    a.losses->lose(b.rails[0], Losses::How::kUnavailable);  // before any piece has moved
    return 0;
  });
  REQUIRE(tally.all_ended());
  CHECK_MESSAGE(tally.good() == 1, tally.first_error());
  b.node.settle();
  CHECK(same(here, there));
}

TEST_CASE("rails: messages that the kernel took are no sign of life") {
  std::atomic<std::size_t> bytes = 0;
  Node a, b;
  for (Node* node : {&a, &b}) {
    std::vector<std::unique_ptr<Rail>> made;
    made.push_back(std::make_unique<DeafRail>(bytes));
    made.push_back(
        std::make_unique<MeasuredRail>(std::make_unique<LoopbackRail>(), 100, true, bytes));
    node->endpoint = transport::endpoint_over(std::move(made), {});
    node->endpoint->start([](std::span<const std::byte>) {});
  }
  const Peer peer = a.connect(b);
  const RegisteredMemory here = a.memory(kBytes), there = b.memory(kBytes);
  fill(there, 4);
  Tally read, sent;
  a.on_thread([&] {
    a.endpoint->read(peer, {&here, 0, kBytes}, at(there), in(milliseconds(1500)), read.next());
    const std::string_view text = "taken";
    a.endpoint->send(peer, std::as_bytes(std::span(text)), soon(), sent.next());
    return 0;
  });
  REQUIRE(sent.all_ended());
  CHECK(sent.good() == 1);
  REQUIRE(read.all_ended());
  CHECK_MESSAGE(read.good() == 1, read.first_error());
  CHECK(same(here, there));
}

TEST_CASE("rails: one that says nothing any more is given up at half of the time") {
  Ship a, b;
  const Peer peer = a.node.connect(b.node);
  const RegisteredMemory here = a.node.memory(kBytes), there = b.node.memory(kBytes);
  fill(there, 4);
  a.losses->lose(b.rails[1], Losses::How::kSilent);
  const TimePoint deadline = in(milliseconds(1500));
  const Outcome read = a.node.read(peer, {&here, 0, kBytes}, at(there), deadline);
  REQUIRE(read.status.has_value());
  CHECK(same(here, there));
  CHECK_FALSE(read.memory_released);  // the silent rail may still write into it
}

TEST_CASE("rails: when all have failed the transfer fails, once, and later ones are tried again") {
  Ship a, b;
  const Peer peer = a.node.connect(b.node);
  const RegisteredMemory here = a.node.memory(kBytes), there = b.node.memory(kBytes);
  for (const auto& rail : b.rails) a.losses->lose(rail, Losses::How::kUnavailable);
  Tally tally;
  a.node.on_thread([&] {
    for (int i = 0; i < 20; ++i)
      a.node.endpoint->write(peer, {&here, 0, kBytes}, at(there), soon(), tally.next());
    return 0;
  });
  REQUIRE(tally.all_ended());
  CHECK(tally.twice() == 0);
  CHECK(tally.with(Code::kUnavailable) == 20);
}

// What is logged while it lives.
class Log {
 public:
  Log() { spdlog::default_logger()->sinks().push_back(sink_); }
  ~Log() { std::erase(spdlog::default_logger()->sinks(), sink_); }
  std::size_t lines_with(std::string_view words) const {
    std::istringstream all(text_.str());
    std::size_t count = 0;
    for (std::string line; std::getline(all, line);)
      count += line.find(words) != std::string::npos ? 1 : 0;
    return count;
  }

 private:
  std::ostringstream text_;
  const spdlog::sink_ptr sink_ = std::make_shared<spdlog::sinks::ostream_sink_mt>(text_);
};

TEST_CASE("rails: one to a peer that is gone is tried again and again, and said to be out once") {
  const Log log;
  Ship a(std::nullopt, {300, 100}, {.rest = Duration()}), b;  // so that the first is always tried
  const Peer peer = a.node.connect(b.node);
  for (std::size_t round = 1; round <= 2; ++round) {
    CAPTURE(round);
    for (const auto& rail : b.rails) a.losses->lose(rail, Losses::How::kUnavailable);
    for (int i = 0; i < 5; ++i) CHECK_FALSE(a.node.send(peer, "nobody").status.has_value());
    CHECK(log.lines_with("is taken out") == round);
    for (const auto& rail : b.rails) a.losses->find(rail);
    for (int i = 0; i < 5; ++i) CHECK(a.node.send(peer, "back").status.has_value());
    CHECK(log.lines_with("works again") == round);
  }
}

// An endpoint with a plain rail and one that takes GPUs' memory.
struct Carrier {
  std::optional<transport::DevicePlace> place;
  Node node;

  Carrier() {
    std::vector<std::unique_ptr<Rail>> made;
    made.push_back(std::make_unique<LoopbackRail>());
    made.push_back(std::make_unique<DeviceRail>(&place));
    node.endpoint = transport::endpoint_over(std::move(made), {});
    node.endpoint->start([](std::span<const std::byte>) {});
  }
  ~Carrier() { node.endpoint.reset(); }
};

TEST_CASE(
    "rails: memory of a GPU goes by the rails that take it, and into the GPU's memory itself") {
  using transport::GpuPath;
  FakeCuda cuda;
  void* const stream = cuda.make_stream();
  for (const GpuPath path : {GpuPath::kDmabuf, GpuPath::kPeerModule}) {
    CAPTURE(path == GpuPath::kDmabuf);
    const auto gpu = value_or_throw(transport::Gpu::open(cuda.driver(), 0, stream));
    Carrier worker, server;
    const Peer to_worker = server.node.connect(worker.node);
    auto buffer =
        value_or_throw(transport::GpuBuffer::make(gpu, *worker.node.endpoint, kBytes, path));
    REQUIRE(worker.place.has_value());
    CHECK(worker.place->ordinal == 0);
    CHECK((worker.place->dmabuf >= 0) == (path == GpuPath::kDmabuf));
    CHECK(buffer.memory().on_device());
    CHECK(buffer.memory().bytes().empty());
    CHECK(buffer.memory().size() == kBytes);
    const RemoteMemory& windows = *buffer.memory().remote();
    REQUIRE(windows.size() == 2);
    CHECK(windows[0] == transport::kNoWindow);

    const std::span device(FakeCuda::here(buffer.device()), kBytes);
    const RegisteredMemory here = server.node.memory(kBytes);
    std::promise<void> ready;
    cuda.run_on(stream, [&] { fill(device, 5); });
    const transport::GpuBuffer::Range ranges[] = {{0, kBytes}};
    REQUIRE(buffer.publish(ranges, [&] { ready.set_value(); }));
    ready.get_future().wait();
    Outcome outcome = server.node.read(to_worker, {&here, 0, kBytes}, at(buffer.memory()));
    REQUIRE_MESSAGE(outcome.status.has_value(), outcome.status.error().message);
    CHECK(std::ranges::equal(here.bytes(), device));
    fill(here, 6);
    outcome = server.node.write(to_worker, {&here, 0, kBytes}, at(buffer.memory()));
    REQUIRE_MESSAGE(outcome.status.has_value(), outcome.status.error().message);
    REQUIRE(buffer.take_in(ranges));
    CHECK(std::ranges::equal(here.bytes(), device));
    CHECK(cuda.copied_out() + cuda.copied_in() == 0);
    CHECK(cuda.pinned() == 0);

    // A peer that shares none of those rails with it is told so.
    const Outcome none =
        server.node.read(to_worker, {&here, 0, kBytes},
                         {std::make_shared<RemoteMemory>(2, transport::kNoWindow), 0});
    CHECK(code_of(none) == Code::kInvalidArgument);
  }
  cuda.destroy_stream(stream);
}

TEST_CASE("rails: two addresses of one host are two rails of tcp") {
  const auto open = [] { return Endpoint::open({.fabric = "tcp", .bind = "127.0.0.1,127.0.0.2"}); };
  Node a, b;
  a.endpoint = open();
  b.endpoint = open();
  REQUIRE(a.endpoint->info().rails.size() == 2);
  CHECK(a.endpoint->info().rails[1].printable.find("127.0.0.2:") != std::string::npos);
  a.endpoint->start([](std::span<const std::byte>) {});
  b.endpoint->start([](std::span<const std::byte>) {});
  const Peer peer = a.connect(b);
  const RegisteredMemory here = a.memory(kBytes), there = b.memory(kBytes);
  fill(there, 5);
  REQUIRE(a.read(peer, {&here, 0, kBytes}, at(there)).status.has_value());
  CHECK(same(here, there));
  fill(here, 6);
  REQUIRE(a.write(peer, {&here, 0, kBytes}, at(there)).status.has_value());
  CHECK(same(here, there));
}

}  // namespace leeway::conformance
