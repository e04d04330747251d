#include "transport/waiter.h"

#include <fmt/format.h>
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
constexpr Duration kYieldNapping = microseconds(1000);
// A nap is a fraction of how long it has been quiet: what comes soon is seen soon, and an idle
// endpoint costs its core a percent or two.
constexpr int kNapFraction = 8;
constexpr Duration kShortestNap = microseconds(50);
constexpr Duration kLongestNap = microseconds(1000);
// A bound on how long a wake-up that a provider forgot can stay unnoticed.
constexpr Duration kLongestSleep = milliseconds(100);

}  // namespace

Waiter::Waiter(std::span<const std::unique_ptr<Rail>> rails) : rails_(rails) {
  wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (wake_fd_ < 0)
    throw ConfigError(fmt::format("eventfd: {}; raise `ulimit -n`", std::strerror(errno)));
  descriptors_.push_back({.fd = wake_fd_, .events = POLLIN, .revents = 0});
  for (const auto& rail : rails_) {
    naps_ |= rail->descriptor() < 0;
    descriptors_.push_back({.fd = rail->descriptor(), .events = POLLIN, .revents = 0});
  }
}

Waiter::~Waiter() { close(wake_fd_); }

void Waiter::wake() noexcept {
  // Pairs with wait(): either it sees the work, or this sees that it sleeps.
  if (!asleep_.load(std::memory_order_seq_cst)) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(wake_fd_, &one, sizeof one);  // full: it wakes anyway
}

void Waiter::active(TimePoint now) noexcept { last_active_ = now; }

void Waiter::wait(TimePoint now, TimePoint until, const TaskQueue& tasks) noexcept {
  if (now - last_active_ < (naps_ ? kYieldNapping : kYieldDescriptor)) {
    sched_yield();
    return;
  }
  const Duration left = until > now ? until - now : Duration::zero();
  asleep_.store(true, std::memory_order_seq_cst);
  if (!tasks.ready()) {
    const Duration nap = std::clamp((now - last_active_) / kNapFraction, kShortestNap, kLongestNap);
    sleep(std::min(left, naps_ ? nap : kLongestSleep));
  }
  asleep_.store(false, std::memory_order_seq_cst);
}

void Waiter::sleep(Duration longest) noexcept {
  std::size_t armed = 0;
  while (armed < rails_.size() && rails_[armed]->arm()) ++armed;
  if (armed == rails_.size()) {
    const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(longest).count();
    const timespec timeout{.tv_sec = nanoseconds / 1'000'000'000,
                           .tv_nsec = nanoseconds % 1'000'000'000};
    if (ppoll(descriptors_.data(), descriptors_.size(), &timeout, nullptr) > 0 &&
        descriptors_.front().revents != 0) {
      std::uint64_t ignored = 0;
      [[maybe_unused]] const auto n = read(wake_fd_, &ignored, sizeof ignored);
    }
  }
  for (std::size_t i = 0; i < armed; ++i) rails_[i]->disarm();
}

}  // namespace leeway::transport
