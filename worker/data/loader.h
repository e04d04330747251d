// Reads a worker's batches ahead, on threads of its own, while the program computes:
//
//   Loader loader(dataset, sampler, {.first_step = session->clock().value(), .end_step = total});
//   while (session->begin_step()) {
//     const Batch& batch = *value_or_throw(loader.next());
//     ...
//   }
//
// Called from one thread, the program's. `loader` threads fill the slots of a ring, step c
// into slot c % ahead; they wait when the ring is full, so memory is `ahead` batches, whatever the
// program does. Which thread fills a slot changes nothing: a batch depends on its step alone.
// The destructor stops the threads and waits for them (at most for one batch to be read).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/half.h"
#include "common/monotonic.h"
#include "common/result.h"
#include "worker/data/dataset.h"
#include "worker/data/sampler.h"

namespace leeway::worker::data {

struct Batch {
  std::uint64_t step = 0;
  std::uint64_t rows = 0;
  std::vector<Half> features;  // rows * dataset.features()
  std::vector<std::int32_t> labels;
};

class Loader {
 public:
  struct Options {
    std::uint64_t first_step = 0;
    std::uint64_t end_step = 0;  // one past the last
    std::uint32_t ahead = 4;     // batches in memory, at least 2
    std::uint32_t threads = 1;
  };
  // `dataset` outlives the loader.
  Loader(const Dataset& dataset, const Sampler& sampler, const Options& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The batch of the next step, valid until the next call; null after the last one. An error of the
  // data set comes with the step that it belongs to, and again on every later call.
  Result<const Batch*> next();

  // How long next() has waited since the last take: what slow reading cost the program.
  double take_seconds_waited() noexcept { return std::exchange(seconds_waited_, 0.0); }

 private:
  struct Slot {
    bool filled = false;  // guarded by mutex_; the rest belongs to whoever may touch the slot
    Status status;
    Batch batch;
  };
  void fill_slots(const std::stop_token& stop, Sampler sampler);

  const Dataset& dataset_;
  const Options options_;
  std::vector<Slot> slots_;

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::uint64_t next_to_fill_;  // guarded by mutex_
  std::uint64_t next_to_take_;  // guarded by mutex_; slots of steps before it are free
  bool holding_ = false;        // the program's: it has the batch before next_to_hand_
  std::uint64_t next_to_hand_;  // the program's
  double seconds_waited_ = 0;   // the program's

  std::vector<std::jthread> threads_;  // last: they use all of the above
};

}  // namespace leeway::worker::data
