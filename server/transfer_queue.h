// Starts transfers in order, a bounded number at a time: the server paces what it reads and writes,
// so that many workers at once do not crowd each other out of the NIC.
//
// Called from the endpoint's thread only.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <utility>

namespace leeway::server {

class TransferQueue {
 public:
  explicit TransferQueue(std::size_t limit) : limit_(limit) {}

  // `start` begins one transfer; whoever gave it calls finished() exactly once afterwards.
  void add(std::function<void()> start) {
    waiting_.push_back(std::move(start));
    fill();
  }
  void finished() {
    --running_;
    fill();
  }

 private:
  void fill() {
    while (running_ < limit_ && !waiting_.empty()) {
      const auto start = std::move(waiting_.front());
      waiting_.pop_front();
      ++running_;
      start();
    }
  }

  const std::size_t limit_;
  std::size_t running_ = 0;
  std::deque<std::function<void()>> waiting_;
};

}  // namespace leeway::server
