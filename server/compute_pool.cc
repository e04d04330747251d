// Compiled without the thread sanitizer: TBB's own hand-over lies in a library that it cannot see.
#include "server/compute_pool.h"

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>

namespace leeway::server {

struct ComputePool::Impl {
  explicit Impl(unsigned threads)
      // TBB counts the calling thread as one of its own; ours never computes.
      : parallelism(tbb::global_control::max_allowed_parallelism, threads + 1),
        arena(static_cast<int>(threads), 0) {}

  void run_one() {
    std::function<void()> task = take();
    task();
    task = nullptr;
    const std::lock_guard lock(mutex);
    if (--unfinished == 0) idle.notify_all();
  }

  // A function of its own for tests/tsan.supp, which must not name what calls tasks.
  [[gnu::noinline]] std::function<void()> take() {
    const std::lock_guard lock(mutex);
    std::function<void()> task = std::move(tasks.front());
    tasks.pop_front();
    return task;
  }

  tbb::global_control parallelism;
  tbb::task_arena arena;
  std::mutex mutex;
  std::condition_variable idle;
  std::deque<std::function<void()>> tasks;  // guarded by mutex
  std::size_t unfinished = 0;               // guarded by mutex
};

ComputePool::ComputePool(unsigned threads) : impl_(std::make_unique<Impl>(std::max(1u, threads))) {}

ComputePool::~ComputePool() { wait(); }

void ComputePool::run(std::function<void()> task) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->tasks.push_back(std::move(task));
    ++impl_->unfinished;
  }
  impl_->arena.enqueue([impl = impl_.get()] { impl->run_one(); });
}

void ComputePool::wait() {
  std::unique_lock lock(impl_->mutex);
  impl_->idle.wait(lock, [&] { return impl_->unfinished == 0; });
}

}  // namespace leeway::server
