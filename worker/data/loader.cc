#include "worker/data/loader.h"

#include <pthread.h>

#include <algorithm>

namespace leeway::worker::data {

Loader::Loader(const Dataset& dataset, const Sampler& sampler, const Options& options)
    : dataset_(dataset),
      options_(options),
      // The program holds one slot; with less than another nothing could be read ahead.
      slots_(std::max(options.ahead, 2u)),
      next_to_fill_(options.first_step),
      next_to_take_(options.first_step),
      next_to_hand_(options.first_step) {
  for (std::uint32_t i = 0; i < std::max(options.threads, 1u); ++i)
    threads_.emplace_back(
        [this, sampler](const std::stop_token& stop) { fill_slots(stop, sampler); });
}

Loader::~Loader() {
  for (std::jthread& thread : threads_) thread.request_stop();
}

void Loader::fill_slots(const std::stop_token& stop, Sampler sampler) {
  pthread_setname_np(pthread_self(), "loader");
  const std::uint64_t rows = sampler.options().batch;
  while (true) {
    std::uint64_t step = 0;
    {
      std::unique_lock lock(mutex_);
      const bool room = changed_.wait(lock, stop, [&] {
        return next_to_fill_ >= options_.end_step || next_to_fill_ < next_to_take_ + slots_.size();
      });
      if (!room || next_to_fill_ >= options_.end_step) return;
      step = next_to_fill_++;
    }
    // The slot is this thread's: free, and no other thread has the same step.
    Slot& slot = slots_[step % slots_.size()];
    slot.batch.step = step;
    slot.batch.rows = rows;
    slot.batch.features.resize(rows * dataset_.features());
    slot.batch.labels.resize(rows);
    slot.status =
        dataset_.read(sampler.slice(step), slot.batch.features.data(), slot.batch.labels.data());
    {
      std::lock_guard lock(mutex_);
      slot.filled = true;
    }
    changed_.notify_all();
  }
}

Result<const Batch*> Loader::next() {
  std::unique_lock lock(mutex_);
  if (holding_) {  // the batch given out last is done with
    slots_[next_to_take_ % slots_.size()].filled = false;
    ++next_to_take_;
    holding_ = false;
    changed_.notify_all();
  }
  if (next_to_hand_ >= options_.end_step) return nullptr;
  Slot& slot = slots_[next_to_hand_ % slots_.size()];
  if (!slot.filled) {
    const TimePoint before = MonotonicClock::now();
    changed_.wait(lock, [&] { return slot.filled; });
    seconds_waited_ += seconds_between(before, MonotonicClock::now());
  }
  if (!slot.status) return tl::unexpected(slot.status.error());
  holding_ = true;
  ++next_to_hand_;
  return &slot.batch;
}

}  // namespace leeway::worker::data
