#include "transport/waiter.h"

#include <fmt/format.h>
#include <poll.h>
#include <rdma/fi_eq.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/result.h"

namespace leeway::transport {
namespace {

using std::chrono::microseconds;

// Long enough for an answer that is on its way, short beside a scheduler's time slice.
constexpr Duration kYieldDescriptor = microseconds(50);
// Without a descriptor a sleep costs latency at every message, so traffic keeps it awake longer.
constexpr Duration kYieldPolling = microseconds(1000);
// A nap is a fraction of how long it has been quiet: what comes soon is seen soon, and an idle
// endpoint costs its core a percent or two.
constexpr int kNapFraction = 8;
constexpr Duration kShortestNap = microseconds(50);
constexpr Duration kLongestNap = microseconds(1000);
// A bound on how long a wake-up that a provider forgot can stay unnoticed.
constexpr Duration kLongestSleep = milliseconds(100);

}  // namespace

Waiter::Waiter(Waiting how, fid_fabric* fabric, fid_cq* queue)
    : how_(how), fabric_(fabric), queue_(queue) {
  if (how_ == Waiting::kDescriptor) {
    const int error = fi_control(&queue_->fid, FI_GETWAIT, &queue_fd_);
    if (error != 0)
      throw ConfigError(fmt::format(
          "the fabric's completion queue has no descriptor to wait on: {}", fi_strerror(-error)));
  }
  wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (wake_fd_ < 0)
    throw ConfigError(fmt::format("eventfd: {}; raise `ulimit -n`", std::strerror(errno)));
}

Waiter::~Waiter() { close(wake_fd_); }

void Waiter::wake() noexcept {
  // Pairs with sleep(): either it sees the work, or this sees that it sleeps.
  if (!asleep_.load(std::memory_order_seq_cst)) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(wake_fd_, &one, sizeof one);  // full: it wakes anyway
}

void Waiter::active(TimePoint now) noexcept { last_active_ = now; }

void Waiter::wait(TimePoint now, TimePoint until, const TaskQueue& tasks) noexcept {
  const bool polling = how_ == Waiting::kPolling;
  if (now - last_active_ < (polling ? kYieldPolling : kYieldDescriptor)) {
    sched_yield();
    return;
  }
  const Duration left = until > now ? until - now : Duration::zero();
  asleep_.store(true, std::memory_order_seq_cst);
  if (!tasks.ready()) {
    const Duration nap = std::clamp((now - last_active_) / kNapFraction, kShortestNap, kLongestNap);
    sleep(std::min(left, polling ? nap : kLongestSleep));
  }
  asleep_.store(false, std::memory_order_seq_cst);
}

void Waiter::sleep(Duration longest) noexcept {
  pollfd fds[2] = {{.fd = wake_fd_, .events = POLLIN, .revents = 0},
                   {.fd = queue_fd_, .events = POLLIN, .revents = 0}};
  nfds_t count = 1;
  if (how_ == Waiting::kDescriptor) {
    fid* queue = &queue_->fid;
    // Says that the queue is empty and its descriptor armed; if not, there is something to read.
    if (fi_trywait(fabric_, &queue, 1) != FI_SUCCESS) return;
    count = 2;
  }
  const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(longest).count();
  const timespec timeout{.tv_sec = nanoseconds / 1'000'000'000,
                         .tv_nsec = nanoseconds % 1'000'000'000};
  if (ppoll(fds, count, &timeout, nullptr) > 0 && fds[0].revents != 0) {
    std::uint64_t ignored = 0;
    [[maybe_unused]] const auto n = read(wake_fd_, &ignored, sizeof ignored);
  }
}

}  // namespace leeway::transport
