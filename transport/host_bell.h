// What wakes a peer of this host: an eventfd of the one who writes messages, which the one who
// reads them has among what it sleeps on. A packet on their socket would do, too, and takes twice
// as long from one thread to the other.
//
// Each object belongs to the thread of its rail.
#pragma once

#include <cstdint>
#include <optional>

#include "common/result.h"
#include "transport/file_descriptor.h"

namespace leeway::transport {

// The writer's end.
class BellRope {
 public:
  static Result<BellRope> make();  // kResourceExhausted: no descriptors

  // Goes to the reader. (Who has it could make ring() block, by two calls that no accident makes;
  // it runs as our own user, and could stop us by a signal as well.)
  const FileDescriptor& descriptor() const noexcept { return eventfd_; }
  void ring() noexcept;

 private:
  explicit BellRope(FileDescriptor eventfd) noexcept : eventfd_(std::move(eventfd)) {}
  FileDescriptor eventfd_;
};

// The reader's end: in its epoll until the end. Each ring makes epoll ready once, with kTag,
// and nothing has to be read.
class Bell {
 public:
  static constexpr std::uint64_t kTag = 0;  // nobody else's

  // Nothing when that is no eventfd, or epoll is out of memory.
  static std::optional<Bell> hang(FileDescriptor eventfd, int epoll);
  Bell(Bell&&) noexcept = default;
  Bell& operator=(Bell&&) = delete;
  ~Bell();

 private:
  Bell(FileDescriptor eventfd, int epoll) noexcept : eventfd_(std::move(eventfd)), epoll_(epoll) {}
  FileDescriptor eventfd_;
  int epoll_;
};

}  // namespace leeway::transport
