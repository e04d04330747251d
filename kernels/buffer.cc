#include <utility>

#include "kernels/backend.h"

namespace leeway::kernels {

Buffer::Buffer(void* data, std::size_t bytes, void (*release)(void*)) noexcept
    : data_(data), bytes_(bytes), release_(release) {}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      release_(other.release_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) release_(data_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    release_ = other.release_;
  }
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr) release_(data_);
}

}  // namespace leeway::kernels
