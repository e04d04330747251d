// A minimal loop over libfabric's own calls: what the provider can do when nothing of ours is in
// the way. The limit that Leeway's endpoint, push and pull are measured against.
//
// Used from one thread. Same provider, memory modes and operations as transport/ uses; no thread,
// no deadlines, no error handling beyond an exception: it polls the completion queue.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/endpoint.h"

namespace leeway::bench {

enum class Move { kRead, kWrite };

class RawFabric {
 public:
  // One endpoint with `bytes` of registered memory. Throws ConfigError.
  RawFabric(const std::string& fabric, std::size_t bytes);
  ~RawFabric();

  const std::vector<std::byte>& address() const noexcept;
  transport::Window memory() const noexcept;  // for the peer

  void connect(std::span<const std::byte> address, transport::Window memory);
  // `count` transfers of `size` bytes, `depth` at a time, over the whole of the memory in turn.
  // Seconds from the first post to the last completion. Throws std::runtime_error.
  double transfer(Move move, std::size_t size, std::size_t count, std::size_t depth);
  // Messages of 8 bytes, each after the echo of the last. Seconds of each.
  std::vector<double> round_trips(std::size_t count);
  // From now on progress() sends each message back to this address.
  void echo(std::span<const std::byte> address);
  // One look at the queue: emulated providers move the peer's transfers only then.
  void progress();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace leeway::bench
