#include "transport/region.h"

#include <algorithm>

#include "transport/providers.h"

namespace leeway::transport {

void RegionList::add(Region& region) {
  const std::lock_guard lock(mutex_);
  regions_.insert(&region);
}

void RegionList::remove(Region& region) {
  const std::lock_guard lock(mutex_);
  regions_.erase(&region);
  region.registrations_.clear();
}

void RegionList::close() {
  const std::lock_guard lock(mutex_);
  for (Region* region : regions_) region->registrations_.clear();
  regions_.clear();
}

Result<std::shared_ptr<Region>> Region::make(std::shared_ptr<RegionList> list,
                                             std::span<const std::unique_ptr<Rail>> rails,
                                             std::size_t bytes, Access access) {
  const bool mapped_by_peers =
      access == Access::kPeers &&
      std::ranges::any_of(rails, [](const auto& rail) { return rail->info().traits->maps_memory; });
  auto memory = HostMemory::make(
      bytes, mapped_by_peers ? HostMemory::Kind::kShareable : HostMemory::Kind::kPrivate);
  if (!memory) return tl::unexpected(std::move(memory).error());
  std::shared_ptr<Region> region(new Region(std::move(list)));
  region->memory_ = std::move(*memory);
  auto windows = std::make_shared<RemoteMemory>();
  for (const auto& rail : rails) {
    auto registration = rail->enlist(region->memory_, access);
    if (!registration) return tl::unexpected(std::move(registration).error());
    if (access == Access::kPeers) windows->push_back((*registration)->window());
    region->registrations_.push_back(std::move(*registration));
  }
  region->remote_ = std::move(windows);
  region->list_->add(*region);
  return region;
}

Region::~Region() { list_->remove(*this); }

}  // namespace leeway::transport
