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
  // kResourceExhausted: bytes, limit and remedy.
  static Result<std::shared_ptr<Region>> make(std::shared_ptr<RegionList> list,
                                              std::span<const std::unique_ptr<Rail>> rails,
                                              std::size_t bytes, Access access);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  std::span<std::byte> bytes() const noexcept { return memory_.bytes(); }
  // Empty for Access::kOwn.
  const std::shared_ptr<const RemoteMemory>& remote() const noexcept { return remote_; }
  LocalPiece piece(std::size_t rail, std::size_t offset, std::size_t size) const noexcept {
    return {registrations_[rail].get(), bytes().data() + offset, size};
  }

 private:
  friend class RegionList;
  explicit Region(std::shared_ptr<RegionList> list) : list_(std::move(list)) {}

  std::shared_ptr<RegionList> list_;
  HostMemory memory_;
  std::vector<std::unique_ptr<Registration>> registrations_;  // by rail
  std::shared_ptr<const RemoteMemory> remote_;
};

}  // namespace leeway::transport
