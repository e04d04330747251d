#include "kernels/emulation/grid.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/emulation/fiber.h"

namespace leeway::kernels::emulation {

Index threadIdx;
Index blockIdx;
Index blockDim;
Index gridDim;

namespace {

constexpr unsigned kLanes = 32;

// Where a thread waits. Two calls of one line are told apart by the column.
struct Place {
  const char* file = nullptr;
  unsigned line = 0;
  unsigned column = 0;
  friend bool operator==(const Place&, const Place&) = default;
};

Place place_of(const std::source_location& where) {
  return {where.file_name(), where.line(), where.column()};
}

std::string describe(const Place& place) {
  return std::string(place.file) + ":" + std::to_string(place.line);
}

// Fibers that ended, for the next grid: a stack costs fresh pages each time it is made.
thread_local std::vector<std::unique_ptr<Fiber>> idle_fibers;

std::unique_ptr<Fiber> take_fiber() {
  if (idle_fibers.empty()) return std::make_unique<Fiber>();
  auto fiber = std::move(idle_fibers.back());
  idle_fibers.pop_back();
  return fiber;
}

struct Thread {
  enum class State { kReady, kAtBarrier, kInWarp, kEnded };
  std::unique_ptr<Fiber> fiber = take_fiber();
  State state = State::kEnded;
  Place place;
  unsigned mask = 0;
  std::uint32_t given = 0;
};

// What the lanes of a warp gave when they last met. A lane that has not read it yet is not waiting
// again, so the warp cannot meet anew and overwrite it.
struct Warp {
  std::uint32_t values[kLanes] = {};
};

class Block {
 public:
  explicit Block(unsigned threads) : threads_(threads), warps_((threads + kLanes - 1) / kLanes) {}
  // One that waits in a grid that failed goes, with its stack.
  ~Block() {
    for (Thread& thread : threads_)
      if (thread.fiber->ended()) idle_fibers.push_back(std::move(thread.fiber));
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  void run(const std::function<void()>& body) {
    for (Thread& thread : threads_) {
      thread.fiber->start(&body);
      thread.state = Thread::State::kReady;
    }
    while (run_ready() || release_warps() || release_barrier()) {
    }
    for (unsigned i = 0; i < threads_.size(); ++i)
      if (threads_[i].state != Thread::State::kEnded) fail_divergent(i);
  }

  void wait(Thread::State state, const std::source_location& where, unsigned mask,
            std::uint32_t value) {
    Thread& thread = threads_[threadIdx.x];
    thread.state = state;
    thread.place = place_of(where);
    thread.mask = mask;
    thread.given = value;
    thread.fiber->suspend();
  }

  const Warp& warp() const { return warps_[threadIdx.x / kLanes]; }

 private:
  bool run_ready() {
    bool ran = false;
    for (unsigned i = 0; i < threads_.size(); ++i) {
      Thread& thread = threads_[i];
      if (thread.state != Thread::State::kReady) continue;
      threadIdx.x = i;
      thread.fiber->resume();
      if (thread.fiber->ended()) thread.state = Thread::State::kEnded;
      ran = true;
    }
    return ran;
  }

  bool release_warps() {
    bool released = false;
    for (unsigned w = 0; w < warps_.size(); ++w)
      for (unsigned lane = 0; lane < kLanes && w * kLanes + lane < threads_.size(); ++lane)
        released |= release_lanes(w, threads_[w * kLanes + lane]);
    return released;
  }

  // When every lane of the first one's mask waits in the same call with the same mask.
  bool release_lanes(unsigned w, const Thread& first) {
    if (first.state != Thread::State::kInWarp) return false;
    const unsigned mask = first.mask;
    const Place place = first.place;
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      if ((mask >> lane & 1u) == 0) continue;
      const unsigned i = w * kLanes + lane;
      if (i >= threads_.size()) return false;
      const Thread& other = threads_[i];
      if (other.state != Thread::State::kInWarp || other.mask != mask || other.place != place)
        return false;
    }
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      if ((mask >> lane & 1u) == 0) continue;
      Thread& other = threads_[w * kLanes + lane];
      warps_[w].values[lane] = other.given;
      other.state = Thread::State::kReady;
    }
    return true;
  }

  // When every thread of the block waits at the same barrier.
  bool release_barrier() {
    for (const Thread& thread : threads_)
      if (thread.state != Thread::State::kAtBarrier || thread.place != threads_[0].place)
        return false;
    for (Thread& thread : threads_) thread.state = Thread::State::kReady;
    return true;
  }

  [[noreturn]] void fail_divergent(unsigned waiting) const {
    const Thread& thread = threads_[waiting];
    std::string message = "divergent block " + std::to_string(blockIdx.x) + ": thread " +
                          std::to_string(waiting) + " waits at " + describe(thread.place);
    for (unsigned i = 0; i < threads_.size(); ++i) {
      const Thread& other = threads_[i];
      if (other.state == thread.state && other.place == thread.place) continue;
      message += ", thread " + std::to_string(i);
      message += other.state == Thread::State::kEnded ? " has ended"
                                                      : " waits at " + describe(other.place);
      break;
    }
    throw std::logic_error(message);
  }

  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
};

Block* running = nullptr;

}  // namespace

void run_grid(unsigned blocks, unsigned threads, const std::function<void()>& body) {
  if (blocks == 0) return;
  constexpr unsigned kMostThreads = 1024;
  if (threads == 0 || threads > kMostThreads || running != nullptr)
    throw std::logic_error("launch of " + std::to_string(threads) + " threads a block" +
                           (running != nullptr ? " within a kernel" : ""));
  Block block(threads);
  struct Running {
    explicit Running(Block* block) { running = block; }
    ~Running() { running = nullptr; }
  } guard(&block);
  blockDim.x = threads;
  gridDim.x = blocks;
  for (unsigned i = 0; i < blocks; ++i) {
    blockIdx.x = i;
    block.run(body);
  }
}

void sync_block(const std::source_location& where) {
  running->wait(Thread::State::kAtBarrier, where, 0, 0);
}

std::uint32_t exchange_in_warp(unsigned mask, std::uint32_t value,
                               const std::function<unsigned(unsigned)>& source,
                               const std::source_location& where) {
  running->wait(Thread::State::kInWarp, where, mask, value);
  const unsigned lane = threadIdx.x % kLanes;
  const unsigned from = source(lane);
  return from < kLanes && (mask >> from & 1u) != 0 ? running->warp().values[from] : value;
}

unsigned ballot_in_warp(unsigned mask, bool predicate, const std::source_location& where) {
  running->wait(Thread::State::kInWarp, where, mask, predicate ? 1 : 0);
  unsigned votes = 0;
  for (unsigned lane = 0; lane < kLanes; ++lane)
    if ((mask >> lane & 1u) != 0 && running->warp().values[lane] != 0) votes |= 1u << lane;
  return votes;
}

}  // namespace leeway::kernels::emulation
