// Tasks that other threads hand to the endpoint's: bounded, in order of posting, with a wake-up.
//
// post() and close() from any thread; take() from the owner. Guarded by its mutex; `ready_` and
// `closed_` are the owner's way of asking without taking it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <vector>

namespace leeway::transport {

class TaskQueue {
 public:
  using Task = std::function<void()>;
  static constexpr std::size_t kCapacity = 1024;

  // Blocks while the queue is full, unless `never_block`; false once it is closed.
  bool post(Task task, bool never_block) {
    std::unique_lock lock(mutex_);
    room_.wait(lock, [&] { return closed_ || never_block || tasks_.size() < kCapacity; });
    if (closed_) return false;
    tasks_.push_back(std::move(task));
    ready_.store(true, std::memory_order_seq_cst);
    return true;
  }

  // Moves everything posted so far into `out`, which is empty.
  void take(std::vector<Task>& out) {
    {
      const std::lock_guard lock(mutex_);
      out.swap(tasks_);
      ready_.store(false, std::memory_order_relaxed);
    }
    room_.notify_all();
  }

  bool ready() const noexcept { return ready_.load(std::memory_order_seq_cst); }

  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
      ready_.store(true, std::memory_order_seq_cst);  // so that a thread about to sleep does not
    }
    room_.notify_all();
  }
  bool closed() const noexcept { return closed_.load(std::memory_order_acquire); }

 private:
  mutable std::mutex mutex_;
  std::condition_variable room_;
  std::vector<Task> tasks_;
  std::atomic<bool> ready_{false}, closed_{false};
};

}  // namespace leeway::transport
