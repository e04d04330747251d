#include "transport/host_bell.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

namespace leeway::transport {
namespace {

// Other descriptors may have a poll() that waits for somebody.
bool is_eventfd(const FileDescriptor& descriptor) {
  std::array<char, 64> target{};
  const ssize_t size = readlink(fmt::format("/proc/self/fd/{}", descriptor.get()).c_str(),
                                target.data(), target.size());
  return size > 0 &&
         std::string_view(target.data(), static_cast<std::size_t>(size)) == "anon_inode:[eventfd]";
}

}  // namespace

Result<BellRope> BellRope::make() {
  FileDescriptor made(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!made)
    return fail(Code::kResourceExhausted,
                fmt::format("an eventfd to wake a peer of this host: {}; raise `ulimit -n`",
                            std::strerror(errno)));
  return BellRope(std::move(made));
}

void BellRope::ring() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(eventfd_.get(), &one, sizeof one);
}

std::optional<Bell> Bell::hang(FileDescriptor eventfd, int epoll) {
  if (!is_eventfd(eventfd)) return std::nullopt;
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  event.data.u64 = kTag;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, eventfd.get(), &event) != 0) return std::nullopt;
  return Bell(std::move(eventfd), epoll);
}

// Closing does not do it: the peer has the eventfd open, too.
Bell::~Bell() {
  if (eventfd_) epoll_ctl(epoll_, EPOLL_CTL_DEL, eventfd_.get(), nullptr);
}

}  // namespace leeway::transport
