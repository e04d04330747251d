#include "tests/conformance/node.h"

#include <algorithm>
#include <cstring>

namespace leeway::conformance {

Node::Node(const OpenOptions& options) {
  endpoint = open_endpoint(options);
  endpoint->start([this](std::span<const std::byte> message) {
    std::string text(reinterpret_cast<const char*>(message.data()), message.size());
    const std::lock_guard lock(mutex_);
    if (fabric().may_repeat_messages() && !seen_.insert(text).second) return;
    messages_.push_back(std::move(text));
    came_.notify_all();
  });
}

Peer Node::connect(std::span<const std::byte> address) {
  return value_or_throw(on_thread([&] { return endpoint->connect(address); }));
}

void Node::disconnect(Peer peer) {
  on_thread([&] {
    endpoint->disconnect(peer);
    return 0;
  });
}

RegisteredMemory Node::memory(std::size_t bytes) {
  return value_or_throw(endpoint->allocate(bytes, transport::Access::kPeers));
}

namespace {

template <typename Begin>
Outcome wait_for(Endpoint& endpoint, Begin begin) {
  auto answer = std::make_shared<std::promise<Outcome>>();
  auto future = answer->get_future();
  endpoint.post(
      [&] { begin([answer](Outcome outcome) { answer->set_value(std::move(outcome)); }); });
  return future.get();
}

}  // namespace

Outcome Node::send(Peer peer, std::string_view text, TimePoint deadline) {
  return wait_for(*endpoint, [&](Completion done) {
    endpoint->send(peer, std::as_bytes(std::span(text)), deadline, std::move(done));
  });
}
Outcome Node::read(Peer peer, LocalRange into, RemoteRange from, TimePoint deadline) {
  return wait_for(*endpoint, [&](Completion done) {
    endpoint->read(peer, into, from, deadline, std::move(done));
  });
}
Outcome Node::write(Peer peer, LocalRange from, RemoteRange to, TimePoint deadline) {
  return wait_for(*endpoint, [&](Completion done) {
    endpoint->write(peer, from, to, deadline, std::move(done));
  });
}

bool Node::has_received(std::size_t n) {
  std::unique_lock lock(mutex_);
  return came_.wait_for(lock, kPatience, [&] { return messages_.size() >= n; });
}
std::vector<std::string> Node::messages() {
  const std::lock_guard lock(mutex_);
  auto sorted = messages_;
  std::ranges::sort(sorted);
  return sorted;
}

Standstill::Standstill(Node& node) : go_(std::make_shared<std::promise<void>>()) {
  auto stands = std::make_shared<std::promise<void>>();
  node.endpoint->post([stands, go = go_] {
    stands->set_value();
    go->get_future().wait();
  });
  stands->get_future().wait();
}

void Standstill::end() {
  if (!std::exchange(ended_, true)) go_->set_value();
}

Completion Tally::next() {
  const std::lock_guard lock(state_->mutex);
  const std::size_t index = state_->ends.size();
  state_->ends.push_back(0);
  return [state = state_, index](const Outcome& outcome) {
    const std::lock_guard inner(state->mutex);
    if (state->ends[index]++ != 0) {
      ++state->twice;
      return;
    }
    ++state->ended;
    state->last = MonotonicClock::now();
    if (outcome.status) {
      ++state->good;
    } else {
      state->codes.push_back(outcome.status.error().code);
      if (state->first_error.empty()) state->first_error = outcome.status.error().message;
    }
    state->changed.notify_all();
  };
}

bool Tally::all_ended() {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_for(lock, kPatience * 2,
                                  [&] { return state_->ended == state_->ends.size(); });
}
std::size_t Tally::begun() const {
  const std::lock_guard lock(state_->mutex);
  return state_->ends.size();
}
std::size_t Tally::good() const {
  const std::lock_guard lock(state_->mutex);
  return state_->good;
}
std::size_t Tally::twice() const {
  const std::lock_guard lock(state_->mutex);
  return state_->twice;
}
std::size_t Tally::with(Code code) const {
  const std::lock_guard lock(state_->mutex);
  return static_cast<std::size_t>(std::ranges::count(state_->codes, code));
}
TimePoint Tally::last() const {
  const std::lock_guard lock(state_->mutex);
  return state_->last;
}
std::string Tally::first_error() const {
  const std::lock_guard lock(state_->mutex);
  return state_->first_error;
}

RemoteRange at(const RegisteredMemory& memory, std::uint64_t offset) {
  return {memory.remote(), offset};
}
RemoteRange at_window(Window window) { return {std::make_shared<RemoteMemory>(1, window), 0}; }

void fill(std::span<std::byte> bytes, std::uint64_t seed) {
  // splitmix64, eight bytes at a time.
  std::size_t i = 0;
  while (i < bytes.size()) {
    std::uint64_t z = seed += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    z ^= z >> 31;
    const std::size_t n = std::min<std::size_t>(8, bytes.size() - i);
    std::memcpy(bytes.data() + i, &z, n);
    i += n;
  }
}
void fill(const RegisteredMemory& memory, std::uint64_t seed) { fill(memory.bytes(), seed); }

bool is_touched(const volatile std::byte* byte) { return *byte != std::byte{0}; }

bool same(const RegisteredMemory& a, const RegisteredMemory& b) {
  return a.bytes().size() == b.bytes().size() &&
         (a.bytes().empty() ||
          std::memcmp(a.bytes().data(), b.bytes().data(), a.bytes().size()) == 0);
}

std::uint64_t hash(std::span<const std::byte> bytes) {
  std::uint64_t sum = 1469598103934665603ull;
  for (const std::byte byte : bytes)
    sum = (sum ^ static_cast<std::uint64_t>(byte)) * 1099511628211ull;
  return sum;
}

Code code_of(const Outcome& outcome) {
  return outcome.status ? Code::kInternal : outcome.status.error().code;
}

}  // namespace leeway::conformance
