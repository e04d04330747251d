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

Result<std::shared_ptr<Region>> Region::make(std::shared_ptr<RegionList> list, Rails rails,
                                             std::size_t bytes, Access access) {
  const bool mapped_by_peers =
      access == Access::kPeers &&
      std::ranges::any_of(rails, [](const auto& rail) { return rail->info().traits->maps_memory; });
  auto memory = HostMemory::make(
      bytes, mapped_by_peers ? HostMemory::Kind::kShareable : HostMemory::Kind::kPrivate);
  if (!memory) return tl::unexpected(std::move(memory).error());
  ForeignMemory view = memory->view();
  std::shared_ptr<Region> region(new Region(std::move(list), std::move(*memory), std::move(view)));
  if (auto s = region->enlist(rails, access); !s) return tl::unexpected(std::move(s).error());
  return region;
}

Result<std::shared_ptr<Region>> Region::make(std::shared_ptr<RegionList> list, Rails rails,
                                             ForeignMemory memory, Access access) {
  std::shared_ptr<Region> region(new Region(std::move(list), {}, std::move(memory)));
  if (auto s = region->enlist(rails, access); !s) return tl::unexpected(std::move(s).error());
  return region;
}

Status Region::enlist(Rails rails, Access access) {
  auto windows = std::make_shared<RemoteMemory>();
  bool known = false;
  for (const auto& rail : rails) {
    std::unique_ptr<Registration> registration;
    if (!on_device() || rail->info().device_memory) {
      auto made = rail->enlist(memory_, access);
      if (!made) return tl::unexpected(std::move(made).error());
      registration = std::move(*made);
      known = true;
    }
    if (access == Access::kPeers)
      windows->push_back(registration ? registration->window() : kNoWindow);
    registrations_.push_back(std::move(registration));
  }
  if (!known) return fail(Code::kUnsupported, "no rail here takes memory of a GPU");
  remote_ = std::move(windows);
  list_->add(*this);
  return {};
}

Region::~Region() { list_->remove(*this); }

}  // namespace leeway::transport
