// The endpoint's thread: tasks, the completion queue, what waits, timers, reports, sleep.
#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <future>

#include "common/log.h"
#include "transport/endpoint_impl.h"

namespace leeway::transport {
namespace {

// Nothing tells when a provider that said "try again" would take it.
constexpr Duration kRetryAfter = std::chrono::microseconds(200);
constexpr Duration kLinger = milliseconds(300);

}  // namespace

void Endpoint::Impl::start(MessageHandler handler) {
  LEEWAY_CHECK(!thread_.joinable());
  handler_ = std::move(handler);
  // thread_ is written before the thread looks at it.
  std::promise<void> known;
  thread_ = std::jthread([this, go = known.get_future()] {
    go.wait();
    pthread_setname_np(pthread_self(), options_.thread_name.substr(0, 15).c_str());
    run();
  });
  known.set_value();
}

void Endpoint::Impl::stop() {
  LEEWAY_CHECK(!on_own_thread());
  tasks_.close();
  if (!thread_.joinable()) return;
  thread_.request_stop();
  waiter_->wake();
  thread_.join();
}

bool Endpoint::Impl::post(Task task) {
  if (!tasks_.post(std::move(task), on_own_thread())) return false;
  waiter_->wake();
  return true;
}

void Endpoint::Impl::Delayed::expire() {
  const Task now = std::move(task);
  owner.delayed_.erase(place_in_list);  // and with it this object
  now();
}

void Endpoint::Impl::at(TimePoint when, Task task) {
  if (stopping_) return;
  delayed_.emplace_front(*this);
  Delayed& delayed = delayed_.front();
  delayed.place_in_list = delayed_.begin();
  delayed.task = std::move(task);
  delayed.when = when;
  timers_.add(delayed);
}

void Endpoint::Impl::run() {
  while (!tasks_.closed()) {
    bool busy = run_tasks();
    busy |= read_queue();
    busy |= retry_waiting();
    const TimePoint now = MonotonicClock::now();
    busy |= fire_timers(now);
    busy |= deliver();
    if (busy)
      waiter_->active(now);
    else
      wait(now);
  }
  shut_down();
}

bool Endpoint::Impl::run_tasks() {
  if (!tasks_.ready()) return false;
  tasks_.take(taken_tasks_);
  for (const Task& task : taken_tasks_) task();
  taken_tasks_.clear();
  return true;
}

bool Endpoint::Impl::read_queue() {
  std::array<fi_cq_msg_entry, 32> entries;
  const ssize_t n = fi_cq_read(queue_.get(), entries.data(), entries.size());
  if (n > 0) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
      auto* posted = static_cast<Posted*>(entries[i].op_context);
      if (posted->kind == Posted::Kind::kReceive)
        received(*static_cast<ReceiveBuffer*>(posted), entries[i].len);
      else
        segment_done(*static_cast<Segment*>(posted), {});
    }
  } else if (n == -FI_EAVAIL) {
    read_queue_error();
  }
  while (!unposted_receives_.empty()) {
    ReceiveBuffer& buffer = *unposted_receives_.back();
    unposted_receives_.pop_back();
    const std::size_t before = unposted_receives_.size();
    repost(buffer);
    if (unposted_receives_.size() > before) break;
  }
  return n > 0 || n == -FI_EAVAIL;
}

void Endpoint::Impl::read_queue_error() {
  fi_cq_err_entry entry{};
  if (fi_cq_readerr(queue_.get(), &entry, 0) != 1) return;
  char space[256] = "";
  const char* said =
      fi_cq_strerror(queue_.get(), entry.prov_errno, entry.err_data, space, sizeof space);
  const std::string text = said != nullptr ? said : "";
  auto* posted = static_cast<Posted*>(entry.op_context);
  if (posted == nullptr) {
    log::warning("fabric {}: {} ({})", info_.fabric, fi_strerror(entry.err), text);
  } else if (posted->kind == Posted::Kind::kReceive) {
    // A message longer than agreed, or one that broke off: the buffer is good for the next.
    if (entry.err != FI_ECANCELED)
      log::warning("fabric {}: a message was lost: {} ({})", info_.fabric, fi_strerror(entry.err),
                   text);
    repost(*static_cast<ReceiveBuffer*>(posted));
  } else {
    auto& segment = *static_cast<Segment*>(posted);
    segment_done(segment, failure(*segment.operation, entry.err, text));
  }
}

void Endpoint::Impl::received(ReceiveBuffer& buffer, std::size_t length) {
  messages_received_.add(1);
  handler_(receive_region_->bytes().subspan(buffer.offset, std::min(length, info_.max_message)));
  repost(buffer);
}

void Endpoint::Impl::repost(ReceiveBuffer& buffer) {
  const auto room = receive_region_->bytes().subspan(buffer.offset, info_.max_message);
  const ssize_t error = fi_recv(endpoint_.get(), room.data(), room.size(),
                                receive_region_->descriptor(), FI_ADDR_UNSPEC, &buffer.context);
  if (error != 0) unposted_receives_.push_back(&buffer);
}

bool Endpoint::Impl::fire_timers(TimePoint now) {
  bool fired = false;
  for (Timer* timer = timers_.soonest(); timer != nullptr && timer->when <= now;
       timer = timers_.soonest()) {
    timers_.remove(*timer);
    timer->expire();
    fired = true;
  }
  return fired;
}

bool Endpoint::Impl::deliver() {
  if (finished_.empty()) return false;
  // What the completions begin may finish at once; that waits for the next round.
  std::vector<Finished> now;
  now.swap(finished_);
  for (Finished& finished : now) finished.done(std::move(finished.outcome));
  return true;
}

void Endpoint::Impl::wait(TimePoint now) {
  TimePoint until = TimePoint::max();
  if (const Timer* timer = timers_.soonest()) until = timer->when;
  if (!waiting_peers_.empty() || !unposted_receives_.empty())
    until = std::min(until, now + kRetryAfter);
  waiter_->wait(now, until, tasks_);
}

void Endpoint::Impl::linger() {
  const TimePoint end = MonotonicClock::now() + kLinger;
  const auto unanswered = [&] {
    return std::ranges::any_of(waiting_peers_,
                               [&](std::uint64_t id) { return !find_peer(id)->reached; });
  };
  while (unanswered() && MonotonicClock::now() < end) {
    read_queue();
    retry_waiting();
    std::this_thread::yield();
  }
}

// A task that was accepted still runs, but what it begins is cancelled at once.
void Endpoint::Impl::shut_down() {
  if (domain_->traits->lingers) linger();
  stopping_ = true;
  cancel_all(Code::kCancelled, "the endpoint is closing", 0);
  while (run_tasks() | deliver()) {
  }
  for (Delayed& delayed : delayed_) timers_.remove(delayed);
  delayed_.clear();
}

}  // namespace leeway::transport
