#include "transport/endpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <random>

#include "transport/endpoint_impl.h"
#include "transport/host_identity.h"
#include "transport/providers.h"
#include "transport/rails.h"
#include "transport/registered_memory.h"

namespace leeway::transport {

Endpoint::Impl::Impl(std::vector<std::unique_ptr<Rail>> rails, const EndpointOptions& options)
    : options_(options), rails_(std::move(rails)) {
  LEEWAY_CHECK(!rails_.empty() && rails_.size() <= kMaxRails);
  std::random_device random;
  address_.id = std::uint64_t{random()} << 32 | random();
  address_.host = host_identity();
  info_.max_message = SIZE_MAX;
  for (const auto& rail : rails_) {
    const RailInfo& its = rail->info();
    address_.rails.push_back(
        {std::string(its.traits->family), its.megabits, its.near, its.address});
    info_.max_message = std::min(info_.max_message, its.max_message);
    info_.rails.push_back({std::string(its.traits->family), its.provider, its.device, its.printable,
                           its.megabits, its.numa_node, its.near, its.device_memory,
                           its.device_dmabuf});
  }
  info_.fabric = info_.rails.front().fabric;
  info_.provider = info_.rails.front().provider;
  info_.device = info_.rails.front().device;
  info_.printable = info_.rails.front().printable;
  info_.address = encode(address_);
  waiter_ = std::make_unique<Waiter>(rails_);
}

Endpoint::Impl::~Impl() {
  stop();
  for (const auto& rail : rails_) rail->close();
  regions_->close();
}

Result<std::shared_ptr<Region>> Endpoint::Impl::allocate(std::size_t bytes, Access access) {
  return Region::make(regions_, rails_, bytes, access);
}

Result<std::shared_ptr<Region>> Endpoint::Impl::enlist(ForeignMemory memory, Access access) {
  return Region::make(regions_, rails_, std::move(memory), access);
}

EndpointCounters Endpoint::Impl::counters() const noexcept {
  return {.messages_sent = messages_sent_.read(),
          .messages_received = messages_received_.read(),
          .bytes_read = bytes_read_.read(),
          .bytes_written = bytes_written_.read()};
}

std::string describe(const EndpointInfo& info) {
  std::vector<std::string> rails;
  for (const EndpointInfo::Rail& rail : info.rails) {
    std::vector<std::string> notes;
    if (rail.megabits != 0 && rail.fabric != "shm")
      notes.push_back(fmt::format("{:g} Gbit/s", rail.megabits / 1000.0));
    if (rail.numa_node >= 0) notes.push_back(fmt::format("NUMA node {}", rail.numa_node));
    if (!rail.near) notes.emplace_back("far from the GPU, in reserve");
    rails.push_back(fmt::format("{} on {} at {}{}", rail.provider, rail.device, rail.printable,
                                notes.empty() ? "" : fmt::format(" ({})", fmt::join(notes, ", "))));
  }
  return fmt::format("{}", fmt::join(rails, " and "));
}

Endpoint::Endpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Endpoint::~Endpoint() = default;

std::unique_ptr<Endpoint> Endpoint::open(const EndpointOptions& options) {
  return endpoint_over(open_rails(options), options);
}

std::unique_ptr<Endpoint> endpoint_over(std::vector<std::unique_ptr<Rail>> rails,
                                        const EndpointOptions& options) {
  return std::unique_ptr<Endpoint>(
      new Endpoint(std::make_unique<Endpoint::Impl>(std::move(rails), options)));
}

const EndpointInfo& Endpoint::info() const noexcept { return impl_->info(); }

Result<RegisteredMemory> Endpoint::allocate(std::size_t bytes, Access access) {
  return RegisteredMemory::of(impl_->allocate(bytes, access));
}
Result<RegisteredMemory> Endpoint::enlist(ForeignMemory memory, Access access) {
  return RegisteredMemory::of(impl_->enlist(std::move(memory), access));
}

void Endpoint::start(MessageHandler handler) { impl_->start(std::move(handler)); }
bool Endpoint::post(Task task) { return impl_->post(std::move(task)); }
bool Endpoint::could_reach(std::span<const std::byte> address) const {
  return impl_->could_reach(address);
}
Result<Peer> Endpoint::connect(std::span<const std::byte> address) {
  return impl_->connect(address);
}
void Endpoint::disconnect(Peer peer) { impl_->disconnect(peer); }
void Endpoint::send(Peer peer, std::span<const std::byte> message, TimePoint deadline,
                    Completion done) {
  impl_->send(peer, message, deadline, std::move(done));
}
void Endpoint::read(Peer peer, LocalRange into, RemoteRange from, TimePoint deadline,
                    Completion done) {
  impl_->transfer(Operation::Kind::kRead, peer, into, std::move(from), deadline, std::move(done));
}
void Endpoint::write(Peer peer, LocalRange from, RemoteRange to, TimePoint deadline,
                     Completion done) {
  impl_->transfer(Operation::Kind::kWrite, peer, from, std::move(to), deadline, std::move(done));
}
std::shared_ptr<const std::byte> Endpoint::map(Peer peer, const RemoteRange& from,
                                               std::size_t size) {
  return impl_->map(peer, from, size);
}
void Endpoint::at(TimePoint when, Task task) { impl_->at(when, std::move(task)); }
EndpointCounters Endpoint::counters() const noexcept { return impl_->counters(); }

}  // namespace leeway::transport
