// The endpoint's thread: tasks, the rails, what waits, timers, reports, sleep.
#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <future>

#include "common/log.h"
#include "transport/endpoint_impl.h"
#include "transport/providers.h"

namespace leeway::transport {
namespace {

// Nothing tells when a rail that said "try again" would take it.
constexpr Duration kRetryAfter = std::chrono::microseconds(200);

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
    // Rails first: what a task sends to a peer that died while we slept is then refused.
    bool busy = poll_rails();
    busy |= run_tasks();
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

bool Endpoint::Impl::poll_rails() {
  bool moved = false;
  for (const auto& rail : rails_) moved |= rail->poll(*this);
  return moved;
}

void Endpoint::Impl::message(std::span<const std::byte> bytes) {
  messages_received_.add(1);
  handler_(bytes);
}

void Endpoint::Impl::done(Ticket& ticket, Status status) {
  piece_over(static_cast<Posted&>(ticket), std::move(status));
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
  if (!waiting_peers_.empty()) until = std::min(until, now + kRetryAfter);
  waiter_->wait(now, until, tasks_);
}

// A task that was accepted still runs, but what it begins is cancelled at once.
void Endpoint::Impl::shut_down() {
  stopping_ = true;
  cancel_all(Code::kCancelled, "the endpoint is closing", 0);
  for (bool more = true; more;) {
    more = run_tasks();
    more = deliver() || more;
  }
  for (Delayed& delayed : delayed_) timers_.remove(delayed);
  delayed_.clear();
}

}  // namespace leeway::transport
