// Endpoints for tests: calls that wait for a completion, and what a test sees of memory.
#pragma once

#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/conformance/fabric.h"
#include "transport/endpoint.h"

namespace leeway::conformance {

using transport::Completion;
using transport::Endpoint;
using transport::LocalRange;
using transport::Outcome;
using transport::Peer;
using transport::RegisteredMemory;
using transport::RemoteMemory;
using transport::RemoteRange;
using transport::Window;

inline constexpr auto kPatience = std::chrono::seconds(CONFORMANCE_PATIENCE);

inline TimePoint soon() { return MonotonicClock::now() + kPatience; }
inline TimePoint in(milliseconds ms) { return MonotonicClock::now() + ms; }

// An endpoint that keeps what it receives.
class Node {
 public:
  explicit Node(const OpenOptions& options = {});

  // Runs `body` on the endpoint's thread and waits for what it returns.
  template <typename F>
  auto on_thread(F body) {
    std::promise<decltype(body())> answer;
    auto future = answer.get_future();
    endpoint->post([&] { answer.set_value(body()); });
    return future.get();
  }
  // Orders what peers did with its memory before what the caller does next, and the other way
  // round; no sanitizer sees how the wire orders them.
  void settle() {
    on_thread([] { return 0; });
  }
  Peer connect(const Node& other) { return connect(other.endpoint->info().address); }
  Peer connect(std::span<const std::byte> address);
  void disconnect(Peer peer);
  RegisteredMemory memory(std::size_t bytes);

  Outcome send(Peer peer, std::string_view text, TimePoint deadline = soon());
  Outcome read(Peer peer, LocalRange into, RemoteRange from, TimePoint deadline = soon());
  Outcome write(Peer peer, LocalRange from, RemoteRange to, TimePoint deadline = soon());

  // Waits until `n` messages have come; false after kPatience. One that comes again counts once
  // where the fabric may repeat messages, so tests on every fabric send no two that are equal.
  bool has_received(std::size_t n);
  std::vector<std::string> messages();  // sorted

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<std::string> messages_;
  std::set<std::string> seen_;  // where messages may repeat

 public:
  std::unique_ptr<Endpoint> endpoint;  // last: its thread uses the rest
};

// The endpoint's thread stands still while one of these lives.
class Standstill {
 public:
  explicit Standstill(Node& node);
  ~Standstill() { end(); }
  void end();

 private:
  bool ended_ = false;
  std::shared_ptr<std::promise<void>> go_;
};

// Counts completions: each operation is to end once.
class Tally {
 public:
  // For one operation.
  Completion next();
  // Waits until every operation has ended; false after kPatience.
  bool all_ended();
  std::size_t begun() const;
  std::size_t good() const;
  std::size_t twice() const;  // ended again
  std::size_t with(Code code) const;
  TimePoint last() const;  // when the latest ended
  std::string first_error() const;

 private:
  struct State {
    mutable std::mutex mutex;
    std::condition_variable changed;
    std::vector<int> ends;
    std::size_t ended = 0, good = 0, twice = 0;
    std::vector<Code> codes;
    TimePoint last{};
    std::string first_error;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// A memory of another process, or a wrong one.
RemoteRange at(const RegisteredMemory& memory, std::uint64_t offset = 0);
RemoteRange at_window(Window window);

void fill(std::span<std::byte> bytes, std::uint64_t seed);
void fill(const RegisteredMemory& memory, std::uint64_t seed);
// Looks while somebody else may be writing, to see a transfer begin; no sanitizer minds.
__attribute__((no_sanitize("thread"))) bool is_touched(const volatile std::byte* byte);
bool same(const RegisteredMemory& a, const RegisteredMemory& b);
std::uint64_t hash(std::span<const std::byte> bytes);
Code code_of(const Outcome& outcome);  // kInternal when it went well

}  // namespace leeway::conformance
