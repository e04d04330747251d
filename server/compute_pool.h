// The threads that compute: a TBB arena of fixed size. Tasks never block.
//
// run() from any thread. A task's input and result travel through this class's own mutex, so that
// an ordering exists that tools can see. The destructor waits for every task.
#pragma once

#include <functional>
#include <memory>

namespace leeway::server {

class ComputePool {
 public:
  explicit ComputePool(unsigned threads);
  ~ComputePool();
  ComputePool(const ComputePool&) = delete;
  ComputePool& operator=(const ComputePool&) = delete;

  void run(std::function<void()> task);
  void wait();  // until nothing runs and nothing waits

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace leeway::server
