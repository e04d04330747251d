#include "tests/unit/transport/fixture.h"

#include <dirent.h>

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <random>
#include <sstream>

namespace leeway::transport::testing {

std::vector<std::string> fabrics() {
  const char* chosen = std::getenv("TEST_FABRICS");
  std::istringstream names(chosen != nullptr ? chosen : "tcp shm");
  return {std::istream_iterator<std::string>(names), {}};
}

std::string bind_address() {
  const char* chosen = std::getenv("TEST_BIND");
  return chosen != nullptr ? chosen : EndpointOptions{}.bind;
}

Node::Node(const std::string& fabric, std::size_t max_transfer, Task also) {
  EndpointOptions options;
  options.fabric = fabric;
  options.bind = bind_address();
  options.max_transfer = max_transfer;
  endpoint = Endpoint::open(options);
  endpoint->start([this, also = std::move(also)](std::span<const std::byte> message) {
    if (also) also();
    const std::lock_guard lock(mutex_);
    messages_.emplace_back(reinterpret_cast<const char*>(message.data()), message.size());
    came_.notify_all();
  });
}

Peer Node::connect(std::span<const std::byte> address) {
  return value_or_throw(on_thread([&] { return endpoint->connect(address); }));
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
  return messages_;
}

RegisteredMemory memory(Node& node, std::size_t bytes) {
  return value_or_throw(node.endpoint->allocate(bytes, Access::kPeers));
}

void fill(const RegisteredMemory& memory, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::byte& byte : memory.bytes()) byte = static_cast<std::byte>(random());
}

std::size_t count_shm_segments(int pid) {
  const std::string prefix = std::to_string(pid) + ":";
  std::size_t count = 0;
  DIR* directory = opendir("/dev/shm");
  if (directory == nullptr) return 0;
  while (const dirent* entry = readdir(directory))
    count += std::string_view(entry->d_name).starts_with(prefix);
  closedir(directory);
  return count;
}

}  // namespace leeway::transport::testing
