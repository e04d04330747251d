// Starts transfers, a bounded number and volume at a time: the server paces what it reads and
// writes. What one worker asks for starts in order; workers take turns, so that none crowds the
// others out of the NIC.
//
// Called from the endpoint's thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <utility>

#include "common/ids.h"

namespace leeway::server {

class TransferQueue {
 public:
  TransferQueue(std::size_t most, std::uint64_t most_bytes)
      : most_(most), most_bytes_(most_bytes) {}

  // `start` begins one transfer; whoever gave it calls finished() exactly once afterwards.
  void add(WorkerId worker, std::uint64_t bytes, std::function<void()> start) {
    auto& waiting = waiting_[worker];
    waiting.push_back({bytes, std::move(start)});
    if (waiting.size() == 1) turns_.push_back(worker);
    fill();
  }
  void finished(std::uint64_t bytes) {
    --running_;
    running_bytes_ -= bytes;
    fill();
  }

 private:
  struct Waiting {
    std::uint64_t bytes = 0;
    std::function<void()> start;
  };

  void fill() {
    while (!turns_.empty() && running_ < most_) {
      const WorkerId worker = turns_.front();
      auto& waiting = waiting_[worker];
      // One that is larger than everything allowed goes alone.
      if (running_ > 0 && running_bytes_ + waiting.front().bytes > most_bytes_) return;
      const Waiting next = std::move(waiting.front());
      waiting.pop_front();
      turns_.pop_front();
      if (!waiting.empty()) turns_.push_back(worker);
      ++running_;
      running_bytes_ += next.bytes;
      next.start();
    }
  }

  const std::size_t most_;
  const std::uint64_t most_bytes_;
  std::size_t running_ = 0;
  std::uint64_t running_bytes_ = 0;
  std::map<WorkerId, std::deque<Waiting>> waiting_;
  std::deque<WorkerId> turns_;  // workers with something that waits
};

}  // namespace leeway::server
