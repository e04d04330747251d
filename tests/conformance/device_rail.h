// A loopback rail that reaches memory of GPUs too, those of tests/unit/transport/fake_cuda.h: what
// a NIC with FI_HMEM is to a worker. Contract in transport/rail.h.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "tests/conformance/loopback_rail.h"
#include "tests/unit/transport/fake_cuda.h"

namespace leeway::conformance {

class DeviceRail final : public transport::Rail {
 public:
  // `place`: what the registration of a GPU's memory named, for tests that look.
  explicit DeviceRail(std::optional<transport::DevicePlace>* place = nullptr) : place_(place) {
    info_ = inner_.info();
    info_.device_memory = true;
  }
  const transport::RailInfo& info() const noexcept override { return info_; }
  std::string printable(std::span<const std::byte> address) const override {
    return inner_.printable(address);
  }
  Result<std::unique_ptr<transport::Registration>> enlist(const transport::ForeignMemory& memory,
                                                          transport::Access access) override {
    if (!memory.device) return inner_.enlist(memory, access);
    if (place_ != nullptr) *place_ = memory.device;
    return inner_.enlist(
        {.data = transport::testing::FakeCuda::here(memory.data), .size = memory.size}, access);
  }
  Result<transport::RailPeer> connect(std::span<const std::byte> address) override {
    return inner_.connect(address);
  }
  void disconnect(transport::RailPeer peer) override { inner_.disconnect(peer); }
  Result<Post> send(transport::RailPeer peer, std::span<const std::byte> message,
                    transport::Ticket& ticket) override {
    return inner_.send(peer, message, ticket);
  }
  Result<Post> read(transport::RailPeer peer, transport::LocalPiece into, transport::Window from,
                    transport::Ticket& ticket) override {
    return inner_.read(peer, into, from, ticket);
  }
  Result<Post> write(transport::RailPeer peer, transport::LocalPiece from, transport::Window to,
                     transport::Ticket& ticket) override {
    return inner_.write(peer, from, to, ticket);
  }
  bool poll(transport::RailUser& user) override { return inner_.poll(user); }
  int descriptor() const noexcept override { return inner_.descriptor(); }
  bool arm() noexcept override { return inner_.arm(); }
  void disarm() noexcept override { inner_.disarm(); }

 private:
  LoopbackRail inner_;
  transport::RailInfo info_;
  std::optional<transport::DevicePlace>* const place_;
};

}  // namespace leeway::conformance
