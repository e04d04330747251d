// Endpoints for tests: two in one process, and calls that wait for a completion with a deadline.
#pragma once

#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "transport/endpoint.h"

namespace leeway::transport::testing {

inline constexpr auto kPatience = std::chrono::seconds(20);

inline TimePoint soon() { return MonotonicClock::now() + kPatience; }

// The fabrics that tests of every fabric run on: TEST_FABRICS ("verbs", "tcp shm"), else the
// two that every machine has.
std::vector<std::string> fabrics();
// Where endpoints of tests bind: TEST_BIND, else the loopback address.
std::string bind_address();

// An endpoint that keeps what it receives.
class Node {
 public:
  // `also` is run by the endpoint's thread for each message, before it counts as received.
  explicit Node(const std::string& fabric, std::size_t max_transfer = std::size_t{1} << 30,
                Task also = nullptr);

  // Runs `body` on the endpoint's thread and waits for what it returns.
  template <typename F>
  auto on_thread(F body) {
    std::promise<decltype(body())> answer;
    auto future = answer.get_future();
    endpoint->post([&] { answer.set_value(body()); });
    return future.get();
  }
  Peer connect(const Node& other) { return connect(other.endpoint->info().address); }
  Peer connect(std::span<const std::byte> address);

  Outcome send(Peer peer, std::string_view text, TimePoint deadline = soon());
  Outcome read(Peer peer, LocalRange into, RemoteRange from, TimePoint deadline = soon());
  Outcome write(Peer peer, LocalRange from, RemoteRange to, TimePoint deadline = soon());

  // Waits until `n` messages have come; false after kPatience.
  bool has_received(std::size_t n);
  std::vector<std::string> messages();

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<std::string> messages_;

 public:
  std::unique_ptr<Endpoint> endpoint;  // last: its thread uses the rest
};

RegisteredMemory memory(Node& node, std::size_t bytes);
// A range of a peer's memory with one window.
inline RemoteRange at_window(Window window) { return {std::make_shared<RemoteMemory>(1, window)}; }
void fill(const RegisteredMemory& memory, std::uint64_t seed);
std::size_t count_shm_segments(int pid);

}  // namespace leeway::transport::testing
