// Memory that is known to every rail of an endpoint. Included by this folder's .cc files only.
//
// Shared by its owner and by every transfer that a rail may still be doing on it. A region that is
// left when the endpoint closes is plain memory from then on. Any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_set>
#include <vector>

#include "transport/endpoint.h"
#include "transport/host_memory.h"
#include "transport/rail.h"

namespace leeway::transport {

class Region;

// The regions of one endpoint.
class RegionList {
 public:
  void add(Region& region);
  // Takes the registrations of `region` away, and itself out of the list.
  void remove(Region& region);
  // The same for all: no rail knows any memory afterwards.
  void close();

 private:
  mutable std::mutex mutex_;  // guards the list and every region's registrations
  std::unordered_set<Region*> regions_;
};

class Region {
 public:
  using Rails = std::span<const std::unique_ptr<Rail>>;
  // New memory of the host. kResourceExhausted: bytes, limit and remedy.
  static Result<std::shared_ptr<Region>> make(std::shared_ptr<RegionList> list, Rails rails,
                                              std::size_t bytes, Access access);
  static Result<std::shared_ptr<Region>> make(std::shared_ptr<RegionList> list, Rails rails,
                                              ForeignMemory memory, Access access);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  std::byte* data() const noexcept { return memory_.data; }
  std::size_t size() const noexcept { return memory_.size; }
  bool on_device() const noexcept { return memory_.device.has_value(); }
  // To a rail.
  bool known(std::size_t rail) const noexcept { return registrations_[rail] != nullptr; }
  // Empty for Access::kOwn.
  const std::shared_ptr<const RemoteMemory>& remote() const noexcept { return remote_; }
  LocalPiece piece(std::size_t rail, std::size_t offset, std::size_t size) const noexcept {
    return {registrations_[rail].get(), data() + offset, size};
  }

 private:
  friend class RegionList;
  Region(std::shared_ptr<RegionList> list, HostMemory own, ForeignMemory memory)
      : list_(std::move(list)), own_(std::move(own)), memory_(std::move(memory)) {}
  Status enlist(Rails rails, Access access);

  std::shared_ptr<RegionList> list_;
  HostMemory own_;  // or empty
  ForeignMemory memory_;
  std::vector<std::unique_ptr<Registration>> registrations_;  // by rail; null = not known there
  std::shared_ptr<const RemoteMemory> remote_;
};

}  // namespace leeway::transport
