// The rail of a libfabric endpoint (FI_EP_RDM, FI_MSG | FI_RMA). Included by this folder's .cc
// files only.
//
// No operation relies on an order between two others: EFA gives none. Member order is close order,
// reversed: the libfabric endpoint first, then its queues, then the buffers that it was given.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/fabric_domain.h"
#include "transport/fabric_handles.h"
#include "transport/host_memory.h"
#include "transport/providers.h"
#include "transport/rail.h"

namespace leeway::transport {

class FabricRail final : public Rail {
 public:
  // What the machine's inventory says of its NIC.
  struct Standing {
    std::uint32_t megabits = 0;  // for a provider that does not say
    int numa_node = -1;
    bool near = true;
  };
  // `peers`: how many it will talk to; sizes its queues. Throws ConfigError.
  FabricRail(Choice choice, std::uint32_t peers, const Standing& standing);
  ~FabricRail() override;

  const RailInfo& info() const noexcept override { return info_; }
  std::string printable(std::span<const std::byte> address) const override;
  Result<std::unique_ptr<Registration>> enlist(const ForeignMemory& memory, Access access) override;
  Result<RailPeer> connect(std::span<const std::byte> address) override;
  void disconnect(RailPeer peer) override;
  Result<Post> send(RailPeer peer, std::span<const std::byte> message, Ticket& ticket) override;
  Result<Post> read(RailPeer peer, LocalPiece into, Window from, Ticket& ticket) override;
  Result<Post> write(RailPeer peer, LocalPiece from, Window to, Ticket& ticket) override;
  bool poll(RailUser& user) override;
  int descriptor() const noexcept override { return queue_descriptor_; }
  void close() noexcept override;
  bool arm() noexcept override;
  void disarm() noexcept override {}

 private:
  // An address in the address vector. It may be removed when nothing is under way to it.
  struct Address {
    fi_addr_t index = FI_ADDR_UNSPEC;
    std::string raw;
    std::size_t peers = 0;      // RailPeers of it
    std::size_t under_way = 0;  // posts
  };
  // Whatever is posted: the provider hands `context` back, and may use its space until then.
  struct Posted {
    fi_context2 context{};
    Ticket* ticket = nullptr;    // null: a receive
    Address* address = nullptr;  // of a send, read or write
    std::size_t buffer = 0;      // of a send or receive
  };

  void open_objects(std::uint32_t peers);
  void describe();
  bool plausible(std::span<const std::byte> address) const;
  void grow_send_buffers();
  void repost(std::size_t receive);
  bool retry_receives();
  void read_error(RailUser& user);
  void forget_if_unused(Address& address);
  std::span<std::byte> receive_room(std::size_t receive) const;
  Posted* take(Address& address, Ticket& ticket);
  Result<Post> outcome(ssize_t error, Posted* posted, std::string_view verb);
  void over(Posted& posted, RailUser& user, Status status);

  std::shared_ptr<FabricDomain> domain_;
  RailInfo info_;

  struct Buffers {
    HostMemory memory;
    std::unique_ptr<FabricRegistration> registration;
  };
  Result<Buffers> make_buffers(std::size_t count) const;

  Buffers receive_buffers_;
  std::vector<Posted> receives_;
  std::vector<std::size_t> unposted_receives_;  // the provider said "try again"
  std::vector<Buffers> send_blocks_;
  std::vector<std::size_t> free_sends_;
  std::vector<std::unique_ptr<Posted>> posted_;
  std::vector<Posted*> free_posted_;
  std::map<std::string, std::unique_ptr<Address>, std::less<>> addresses_;
  std::unordered_map<std::uint64_t, Address*> peers_;
  std::uint64_t next_peer_ = 1;

  Fid<fid_av> addresses_fid_;
  Fid<fid_cq> queue_;
  int queue_descriptor_ = -1;
  Fid<fid_ep> endpoint_;
};

}  // namespace leeway::transport
