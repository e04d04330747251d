// Deadlines and delayed tasks, soonest first; any of them removable.
//
// A binary heap in which each timer knows its place: operations come and go by the hundred thousand
// with deadlines far away, and leave nothing behind. Owned by one thread; a timer is removed before
// it is destroyed.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "common/monotonic.h"
#include "common/result.h"

namespace leeway::transport {

struct Timer {
  static constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);
  virtual ~Timer() = default;
  virtual void expire() = 0;  // it is out of the heap then

  TimePoint when{};
  std::size_t place = kNowhere;
};

class TimerHeap {
 public:
  void add(Timer& timer) {
    LEEWAY_CHECK(timer.place == Timer::kNowhere);
    heap_.push_back(&timer);
    timer.place = heap_.size() - 1;
    rise(timer.place);
  }

  void remove(Timer& timer) {
    const std::size_t place = timer.place;
    if (place == Timer::kNowhere) return;
    swap(place, heap_.size() - 1);
    heap_.pop_back();
    timer.place = Timer::kNowhere;
    if (place < heap_.size()) sink(rise(place));
  }

  Timer* soonest() const noexcept { return heap_.empty() ? nullptr : heap_.front(); }

 private:
  bool before(std::size_t a, std::size_t b) const { return heap_[a]->when < heap_[b]->when; }
  void swap(std::size_t a, std::size_t b) {
    std::swap(heap_[a], heap_[b]);
    heap_[a]->place = a;
    heap_[b]->place = b;
  }
  std::size_t rise(std::size_t at) {
    for (; at > 0 && before(at, (at - 1) / 2); at = (at - 1) / 2) swap(at, (at - 1) / 2);
    return at;
  }
  void sink(std::size_t at) {
    while (true) {
      std::size_t least = at;
      for (const std::size_t child : {2 * at + 1, 2 * at + 2})
        if (child < heap_.size() && before(child, least)) least = child;
      if (least == at) return;
      swap(at, least);
      at = least;
    }
  }

  std::vector<Timer*> heap_;
};

}  // namespace leeway::transport
