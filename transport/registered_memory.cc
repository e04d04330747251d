#include "transport/registered_memory.h"

namespace leeway::transport {

RegisteredMemory::RegisteredMemory() noexcept = default;
RegisteredMemory::RegisteredMemory(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
RegisteredMemory::RegisteredMemory(RegisteredMemory&&) noexcept = default;
RegisteredMemory& RegisteredMemory::operator=(RegisteredMemory&&) noexcept = default;
RegisteredMemory::~RegisteredMemory() = default;

std::span<std::byte> RegisteredMemory::bytes() const noexcept {
  return impl_ ? impl_->region->bytes() : std::span<std::byte>();
}
std::uint64_t RegisteredMemory::remote_address(std::size_t offset) const noexcept {
  return impl_ ? impl_->region->remote_address(offset) : 0;
}
std::uint64_t RegisteredMemory::remote_key() const noexcept {
  return impl_ ? impl_->region->remote_key() : 0;
}

}  // namespace leeway::transport
