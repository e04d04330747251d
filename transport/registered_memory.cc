#include "transport/registered_memory.h"

namespace leeway::transport {

RegisteredMemory::RegisteredMemory() noexcept = default;
RegisteredMemory::RegisteredMemory(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
RegisteredMemory::RegisteredMemory(RegisteredMemory&&) noexcept = default;
RegisteredMemory& RegisteredMemory::operator=(RegisteredMemory&&) noexcept = default;
RegisteredMemory::~RegisteredMemory() = default;

Result<RegisteredMemory> RegisteredMemory::of(Result<std::shared_ptr<Region>> region) {
  if (!region) return tl::unexpected(std::move(region).error());
  return RegisteredMemory(std::make_unique<Impl>(Impl{std::move(*region)}));
}

std::size_t RegisteredMemory::size() const noexcept { return impl_ ? impl_->region->size() : 0; }
std::span<std::byte> RegisteredMemory::bytes() const noexcept {
  if (!impl_ || on_device()) return {};
  return {impl_->region->data(), impl_->region->size()};
}
bool RegisteredMemory::on_device() const noexcept { return impl_ && impl_->region->on_device(); }
std::shared_ptr<const RemoteMemory> RegisteredMemory::remote() const noexcept {
  return impl_ ? impl_->region->remote() : nullptr;
}

}  // namespace leeway::transport
