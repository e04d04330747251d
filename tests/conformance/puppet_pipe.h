// What goes over the control pipe between a test and its puppet: parcels, each with its length.
// Both ends are the same binary, so numbers go as they lie in memory.
#pragma once

#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "transport/endpoint.h"

namespace leeway::conformance {

enum class PuppetVerb : std::uint32_t {
  kAllocate,
  kConnect,
  kDisconnect,
  kTransfer,
  kSend,
  kReceived,
  kHash,
  kStandStill,
  kDieWhenTouched,
  kDieWhileClosing,
  kCloseEndpoint,
};

class Parcel {
 public:
  template <typename T>
  Parcel& put(const T& value) requires std::is_trivially_copyable_v<T> {
    return put_bytes(&value, sizeof value);
  }
  Parcel& put_text(const std::string& text) {
    put(text.size());
    return put_bytes(text.data(), text.size());
  }
  template <typename T>
  Parcel& put_all(const std::vector<T>& values) {
    put(values.size());
    return put_bytes(values.data(), values.size() * sizeof(T));
  }
  template <typename T>
  T take() {
    T value;
    take_bytes(&value, sizeof value);
    return value;
  }
  std::string take_text() {
    std::string text(take<std::size_t>(), '\0');
    take_bytes(text.data(), text.size());
    return text;
  }
  template <typename T>
  std::vector<T> take_all() {
    std::vector<T> values(take<std::size_t>());
    take_bytes(values.data(), values.size() * sizeof(T));
    return values;
  }

  void send_to(int pipe) const {
    const std::size_t size = bytes_.size();
    write_all(pipe, &size, sizeof size);
    write_all(pipe, bytes_.data(), size);
  }
  // False when the other end is closed.
  bool receive_from(int pipe) {
    std::size_t size = 0;
    if (!read_all(pipe, &size, sizeof size)) return false;
    bytes_.resize(size);
    place_ = 0;
    return read_all(pipe, bytes_.data(), size);
  }

 private:
  Parcel& put_bytes(const void* data, std::size_t size) {
    const auto* from = static_cast<const char*>(data);
    bytes_.insert(bytes_.end(), from, from + size);
    return *this;
  }
  void take_bytes(void* data, std::size_t size) {
    if (size > bytes_.size() - place_) throw std::runtime_error("a parcel is too short");
    if (size != 0) std::memcpy(data, bytes_.data() + place_, size);
    place_ += size;
  }
  static void write_all(int pipe, const void* data, std::size_t size) {
    for (std::size_t done = 0; done < size;) {
      const auto n = ::send(pipe, static_cast<const char*>(data) + done, size - done, MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) throw std::runtime_error("the puppet is gone");
      done += static_cast<std::size_t>(n);
    }
  }
  static bool read_all(int pipe, void* data, std::size_t size) {
    for (std::size_t done = 0; done < size;) {
      const auto n = ::recv(pipe, static_cast<char*>(data) + done, size - done, 0);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      done += static_cast<std::size_t>(n);
    }
    return true;
  }

  std::vector<char> bytes_;
  std::size_t place_ = 0;
};

}  // namespace leeway::conformance
