#include "tests/unit/transport/host_fixture.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

namespace leeway::transport::testing {

void HostNode::message(std::span<const std::byte> bytes) {
  messages.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void HostNode::done(Ticket& ticket, Status status) {
  auto& posted = reinterpret_cast<Posted&>(ticket);
  ++posted.times;
  posted.status = std::move(status);
}

RailPeer HostNode::connect(std::span<const std::byte> address) {
  return value_or_throw(rail->connect(address));
}

Ticket& HostNode::new_ticket() { return tickets_.emplace_back().ticket; }

HostNode::Number HostNode::taken(Result<Rail::Post> posted) {
  REQUIRE(posted);
  REQUIRE(*posted == Rail::Post::kTaken);
  return tickets_.size() - 1;
}

HostNode::Number HostNode::send(RailPeer peer, std::string_view text) {
  return taken(rail->send(peer, std::as_bytes(std::span(text)), new_ticket()));
}

HostNode::Number HostNode::read(RailPeer peer, std::span<std::byte> into, Window from) {
  return taken(rail->read(peer, {nullptr, into.data(), into.size()}, from, new_ticket()));
}

HostNode::Number HostNode::write(RailPeer peer, std::span<std::byte> from, Window to) {
  return taken(rail->write(peer, {nullptr, from.data(), from.size()}, to, new_ticket()));
}

std::size_t HostNode::done_count() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(tickets_, [](const Posted& posted) { return posted.times > 0; }));
}

bool HostNode::each_at_most_once() const {
  return std::ranges::all_of(tickets_, [](const Posted& posted) { return posted.times <= 1; });
}

HostShared::HostShared(HostNode& node, std::size_t bytes)
    : memory(value_or_throw(HostMemory::make(bytes, HostMemory::Kind::kShareable))),
      registration(value_or_throw(node.rail->enlist(memory.view(), Access::kPeers))) {}

Window HostShared::window(std::size_t offset) const {
  Window window = registration->window();
  window.address += offset;
  return window;
}

bool readable(const HostNode& node, std::chrono::milliseconds longest) {
  pollfd watched{.fd = node.rail->descriptor(), .events = POLLIN, .revents = 0};
  return ::poll(&watched, 1, static_cast<int>(longest.count())) == 1;
}

void settle(HostNode& node) {
  while (true) {
    while (node.poll()) {
    }
    if (!node.rail->arm()) continue;
    if (!readable(node, milliseconds(0))) return;
    node.rail->disarm();
  }
}

void fill(std::span<std::byte> bytes, std::uint64_t seed) {
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>((i * 0x9e3779b97f4a7c15 + seed * 0x632be59bd9b4e019) >> 56);
}

bool filled(std::span<const std::byte> bytes, std::uint64_t seed) {
  for (std::size_t i = 0; i < bytes.size(); ++i)
    if (bytes[i] !=
        static_cast<std::byte>((i * 0x9e3779b97f4a7c15 + seed * 0x632be59bd9b4e019) >> 56))
      return false;
  return true;
}

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

std::size_t shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("/memfd:") != line.npos;
  return count;
}

}  // namespace leeway::transport::testing
