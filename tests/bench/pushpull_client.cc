#include "tests/bench/pushpull_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <future>
#include <stdexcept>
#include <utility>
#include <variant>

#include "common/half.h"
#include "common/result.h"

namespace leeway::bench {
namespace {

constexpr std::chrono::seconds kDeadline{60};

template <typename T>
T* at(const transport::RegisteredMemory& memory, std::size_t elements) {
  return reinterpret_cast<T*>(memory.bytes().data()) + elements;
}

}  // namespace

PushPullClient::PushPullClient(std::unique_ptr<transport::Endpoint> endpoint, PushPullPlan plan,
                               std::uint32_t rank)
    : plan_(std::move(plan)),
      self_{kJob, worker_incarnation(rank), rank},
      shards_(plan_.servers),
      entries_(plan_.servers),
      have_(plan_.partitions()),
      endpoint_(std::move(endpoint)),
      memory_(value_or_throw(
          endpoint_->allocate(plan_.elements * sizeof(float), transport::Access::kPeers))) {
  for (std::size_t p = 0; p < plan_.partitions(); ++p)
    shards_[plan_.server_of(p)].push_back(static_cast<std::uint32_t>(p));
  fill_gradients();
  endpoint_->start([this](std::span<const std::byte> frame) { on_frame(frame); });
  std::promise<std::string> connected;
  endpoint_->post([&] {
    std::string error;
    for (const auto& address : plan_.server_addresses) {
      const auto peer = endpoint_->connect(address);
      if (peer)
        peers_.push_back(*peer);
      else
        error = peer.error().message;
    }
    connected.set_value(error);
  });
  if (const std::string error = connected.get_future().get(); !error.empty())
    throw std::runtime_error(error);
}

PushPullClient::~PushPullClient() {
  std::promise<void> released;
  if (endpoint_->post([&] {
        memory_ = {};
        released.set_value();
      }))
    released.get_future().get();
}

// --- messages ------------------------------------------------------------------------------------

void PushPullClient::on_frame(std::span<const std::byte> frame) {
  const std::lock_guard lock(mutex_);
  while (!frame.empty()) {
    const auto message = transport::decode_next(frame);
    if (message)
      take(*message);
    else
      failure_ = message.error().message;
  }
  changed_.notify_all();
}

void PushPullClient::take(const transport::Message& message) {
  if (const auto* taken = std::get_if<transport::PushTaken>(&message.body)) {
    taken_ += taken->partitions.size();
  } else if (std::holds_alternative<transport::Committed>(message.body)) {
    ++committed_;
    if (round_trips_) end_round_trip();
  } else if (const auto* pulled = std::get_if<transport::Pulled>(&message.body)) {
    for (const auto& entry : pulled->entries) {
      Version& have = have_.at(entry.partition.value());
      if (everything_ || entry.version != have)
        pulled_bytes_ += plan_.length(entry.partition.value()) * sizeof(Half);
      have = entry.version;
    }
    std::size_t& entries = entries_.at(message.sender.id);
    entries += pulled->entries.size();
    if (entries == pulled->total) ++pulled_;
  } else if (const auto* refused = std::get_if<transport::Refused>(&message.body)) {
    failure_ = refused->text;
  }
}

void PushPullClient::send(std::uint32_t server, const transport::Body& body) {
  endpoint_->post([this, server, bytes = transport::encode(self_, body)] {
    endpoint_->send(peers_[server], bytes, MonotonicClock::now() + kDeadline,
                    [this](const transport::Outcome& outcome) {
                      if (outcome.status) return;
                      const std::lock_guard lock(mutex_);
                      failure_ = outcome.status.error().message;
                      changed_.notify_all();
                    });
  });
}

template <typename Ready>
void PushPullClient::wait(const char* what, Ready ready) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, kDeadline, [&] { return !failure_.empty() || ready(); }))
    throw std::runtime_error(
        fmt::format("step {}: {} within {} s", clock_.value(), what, kDeadline.count()));
  if (!failure_.empty()) throw std::runtime_error(failure_);
}

void PushPullClient::start_push(bool initial) {
  {
    const std::lock_guard lock(mutex_);
    taken_ = 0;
  }
  const std::size_t width = initial ? sizeof(float) : sizeof(Half);
  const std::size_t most =
      transport::max_push_entries(endpoint_->info().max_message, memory_.remote()->size());
  for (std::uint32_t s = 0; s < plan_.servers; ++s) {
    for (std::size_t from = 0; from < shards_[s].size(); from += most) {
      transport::Push push{.clock = clock_, .memory = memory_.remote()};
      for (std::size_t i = from; i < std::min(from + most, shards_[s].size()); ++i) {
        const std::uint32_t p = shards_[s][i];
        push.entries.push_back({.partition = PartitionId(p),
                                .scale = initial ? 1 : kScale,
                                .offset = plan_.begin(p) * width,
                                .bytes = plan_.length(p) * width,
                                .codec = initial ? transport::Codec::kF32 : transport::Codec::kF16,
                                .initial = initial});
      }
      send(s, push);
    }
  }
}

void PushPullClient::start_ending(transport::Ending ending) {
  {
    const std::lock_guard lock(mutex_);
    committed_ = 0;
  }
  for (std::uint32_t s = 0; s < plan_.servers; ++s)
    send(s, transport::Commit{.clock = clock_, .ending = ending, .samples = 1});
  if (ending == transport::Ending::kCommit) clock_ = clock_.next();
}

// Empty, it moves nothing: its answer says that this worker's steps are applied.
void PushPullClient::start_pull(bool everything, bool empty) {
  std::vector<Version> have(have_.size());
  {
    const std::lock_guard lock(mutex_);
    pulled_ = 0;
    std::ranges::fill(entries_, 0);
    everything_ = everything;
    if (!everything) have = have_;
  }
  ++request_;
  const std::size_t most =
      transport::max_pull_entries(endpoint_->info().max_message, memory_.remote()->size());
  for (std::uint32_t s = 0; s < plan_.servers; ++s) {
    const std::size_t total = empty ? 0 : shards_[s].size();
    std::size_t from = 0;
    do {
      transport::Pull pull{.clock = clock_,
                           .request = request_,
                           .staleness = transport::kUnboundedStaleness,
                           .total = static_cast<std::uint32_t>(total),
                           .memory = memory_.remote()};
      for (std::size_t i = from; i < std::min(from + most, total); ++i) {
        const std::uint32_t p = shards_[s][i];
        pull.entries.push_back(
            {PartitionId(p), have[p], (plan_.elements + plan_.begin(p)) * sizeof(Half)});
      }
      send(s, pull);
      from += most;
    } while (from < total);
  }
}

void PushPullClient::await_taken() {
  wait("the servers did not take all payloads", [this] { return taken_ == plan_.partitions(); });
}

void PushPullClient::await_committed() {
  wait("the servers did not confirm the commit", [this] { return committed_ == plan_.servers; });
}

void PushPullClient::await_pulled() {
  wait("the servers did not answer the pull", [this] { return pulled_ == plan_.servers; });
}

// --- what is measured ----------------------------------------------------------------------------

void PushPullClient::push_initial() {
  std::ranges::fill(memory_.bytes(), std::byte{});
  start_push(true);
  await_taken();
  start_ending(transport::Ending::kInitial);
  await_committed();
  fill_gradients();
}

void PushPullClient::fill_gradients() {
  Half* const gradients = at<Half>(memory_, 0);
  for (std::size_t i = 0; i < plan_.elements; ++i)
    gradients[i] = to_half(kScale * gradient_of(plan_, i));
}

Moved PushPullClient::push(int steps) {
  Moved moved{.begin = MonotonicClock::now()};
  for (int i = 0; i < steps; ++i) {
    start_push(false);
    if (!alone()) await_taken();
    start_ending(transport::Ending::kCommit);
    await_committed();
  }
  start_pull(false, true);
  await_pulled();
  moved.end = MonotonicClock::now();
  moved.bytes = static_cast<std::uint64_t>(steps) * plan_.elements * sizeof(Half);
  return moved;
}

Moved PushPullClient::apply(int steps) {
  Moved moved{.begin = MonotonicClock::now()};
  for (int i = 0; i < steps; ++i) moved.bytes += push(1).bytes;
  moved.end = MonotonicClock::now();
  return moved;
}

Moved PushPullClient::pull(int times) {
  pulled_bytes_ = 0;  // nothing is under way
  Moved moved{.begin = MonotonicClock::now()};
  for (int i = 0; i < times; ++i) {
    start_pull(true);
    await_pulled();
  }
  moved.end = MonotonicClock::now();
  moved.bytes = pulled_bytes_;
  return moved;
}

Moved PushPullClient::both(int steps) {
  pulled_bytes_ = 0;  // nothing is under way
  Moved moved{.begin = MonotonicClock::now()};
  start_push(false);
  for (int i = 0; i < steps; ++i) {
    if (!alone()) await_taken();
    if (i > 0) await_pulled();
    start_ending(transport::Ending::kCommit);
    start_pull(false);
    await_committed();
    if (i + 1 < steps) start_push(false);
  }
  await_pulled();
  moved.end = MonotonicClock::now();
  moved.bytes = pulled_bytes_ + static_cast<std::uint64_t>(steps) * plan_.elements * sizeof(Half);
  return moved;
}

std::vector<double> PushPullClient::round_trips(std::size_t count, milliseconds pause) {
  {
    const std::lock_guard lock(mutex_);
    round_trips_ = RoundTrips{.count = count, .pause = pause};
  }
  endpoint_->post([this, pause] {
    endpoint_->at(MonotonicClock::now() + pause, [this] { send_round_trip(); });
  });
  wait("the server did not answer", [&] { return round_trips_->microseconds.size() == count; });
  const std::lock_guard lock(mutex_);
  return std::exchange(round_trips_, std::nullopt)->microseconds;
}

// Both on the fabric thread, the second with the mutex.
void PushPullClient::send_round_trip() {
  transport::Push push{.clock = clock_, .memory = memory_.remote()};
  for (std::size_t p = 0; p < plan_.partitions(); ++p) {
    const auto payload =
        memory_.bytes().subspan(plan_.begin(p) * sizeof(Half), plan_.length(p) * sizeof(Half));
    push.entries.push_back({.partition = PartitionId(static_cast<std::uint32_t>(p)),
                            .scale = kScale,
                            .offset = plan_.begin(p) * sizeof(Half),
                            .bytes = payload.size(),
                            .inlined = true});
    push.payload.insert(push.payload.end(), payload.begin(), payload.end());
  }
  round_trips_->sent = MonotonicClock::now();
  auto frame = transport::encode(self_, push);
  const auto commit = transport::encode(self_, transport::Commit{.clock = clock_, .samples = 1});
  frame.insert(frame.end(), commit.begin(), commit.end());
  endpoint_->send(peers_[0], frame, MonotonicClock::now() + kDeadline);
  clock_ = clock_.next();
}

void PushPullClient::end_round_trip() {
  RoundTrips& trips = *round_trips_;
  trips.microseconds.push_back(1e6 * seconds_between(trips.sent, MonotonicClock::now()));
  if (trips.microseconds.size() == trips.count) return;
  if (trips.pause > milliseconds(0))
    endpoint_->at(MonotonicClock::now() + trips.pause, [this] { send_round_trip(); });
  else
    send_round_trip();
}

void PushPullClient::check(std::uint64_t steps) {
  Half* const weights = at<Half>(memory_, plan_.elements);
  std::fill_n(weights, plan_.elements, to_half(-1234));
  pull(1);
  const std::array<float, 7> wanted = weights_after(plan_, steps);
  for (std::size_t i = 0; i < plan_.elements; ++i) {
    const float got = to_float(weights[i]);
    if (got != wanted[i % 7])
      throw std::runtime_error(fmt::format(
          "weight {} is {} after {} steps, it should be {}: this is a bug worth reporting", i, got,
          steps, wanted[i % 7]));
  }
}

void PushPullClient::check_uniform() {
  const Half* const weights = at<Half>(memory_, plan_.elements);
  std::vector<Version> versions;
  {
    const std::lock_guard lock(mutex_);
    versions = have_;
  }
  std::optional<Version> known;
  Half wanted{};
  for (std::size_t p = 0; p < plan_.partitions(); ++p) {
    // Version 1 is the initial values.
    if (known != versions[p]) wanted = to_half(weights_after(plan_, versions[p].value() - 1)[0]);
    known = versions[p];
    const std::span partition(weights + plan_.begin(p), plan_.length(p));
    if (!std::ranges::all_of(partition, [&](Half h) { return h == wanted; }))
      throw std::runtime_error(fmt::format(
          "partition {} of version {} is not {} everywhere: this is a bug worth reporting", p,
          versions[p].value(), to_float(wanted)));
  }
}

}  // namespace leeway::bench
