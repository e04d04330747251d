#include "tests/unit/transport/fake_cuda.h"

#include <doctest/doctest.h>
#include <fcntl.h>

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace leeway::transport::testing {
namespace {

constexpr int kInvalidValue = 1, kOutOfMemory = 2, kInvalidContext = 201, kNotSupported = 801;
// Beyond what user space maps, and a multiple of every alignment.
constexpr std::uintptr_t kAway = std::uintptr_t{1} << 56;
constexpr auto kPoison = std::byte{0xA5};

struct Stream {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool held = false, busy = false;
  std::jthread thread;

  Stream() : thread([this](const std::stop_token& stop) { run(stop); }) {}
  ~Stream() {
    wait();
    {
      const std::lock_guard lock(mutex);
      thread.request_stop();
    }
    changed.notify_all();
  }
  void run(const std::stop_token& stop) {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return stop.stop_requested() || (!held && !work.empty()); });
      if (stop.stop_requested()) return;
      const auto task = std::move(work.front());
      work.pop_front();
      busy = true;
      lock.unlock();
      task();
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }
  void add(std::function<void()> task) {
    const std::lock_guard lock(mutex);
    work.push_back(std::move(task));
    changed.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return work.empty() && !busy; });
  }
  // As far as it can get while a test holds it.
  void wait_unless_held() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return !busy && (held || work.empty()); });
  }
};

struct Event {
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t recorded = 0, done = 0;
};

struct State {
  explicit State(const FakeCuda::Options& o) : options(o) { fill(); }
  void fill();

  const FakeCuda::Options options;
  CudaDriver driver;
  std::mutex mutex;                                           // guards the rest
  std::map<std::uintptr_t, std::vector<std::byte>> memories;  // by where the host sees them
  std::vector<std::vector<std::byte>> freed;
  std::map<std::uintptr_t, std::size_t> pins;
  std::map<void*, std::unique_ptr<Stream>> streams;
  std::map<void*, std::shared_ptr<Event>> events;
  std::size_t used = 0, out = 0, in = 0, flushes = 0, nics = 0, contexts = 0;

  bool on_device(CudaDriver::Pointer memory, std::size_t bytes) {
    const std::uintptr_t at = memory - kAway;
    auto it = memories.upper_bound(at);
    if (it == memories.begin()) return false;
    --it;
    return at - it->first <= it->second.size() && bytes <= it->second.size() - (at - it->first);
  }
  bool is_pinned(const void* host, std::size_t bytes) {
    const auto at = reinterpret_cast<std::uintptr_t>(host);
    auto it = pins.upper_bound(at);
    if (it == pins.begin()) return false;
    --it;
    return at - it->first <= it->second && bytes <= it->second - (at - it->first);
  }
};

State* the_state = nullptr;
thread_local int contexts_here = 0;

// What a stream still has to do with an event outlives the event's end.
std::shared_ptr<Event> event_of(void* event) {
  const std::lock_guard lock(the_state->mutex);
  return the_state->events.at(event);
}

Stream& stream_of(void* stream) { return *static_cast<Stream*>(stream); }

int copy(bool out, const void* host, CudaDriver::Pointer device, std::size_t bytes, void* stream) {
  if (contexts_here == 0) return kInvalidContext;
  const std::lock_guard lock(the_state->mutex);
  if (!the_state->is_pinned(host, bytes) || !the_state->on_device(device, bytes))
    return kInvalidValue;
  (out ? the_state->out : the_state->in) += bytes;
  std::byte* const there = FakeCuda::here(std::bit_cast<const void*>(device));
  auto* const here = static_cast<std::byte*>(const_cast<void*>(host));
  stream_of(stream).add([=] { std::memcpy(out ? here : there, out ? there : here, bytes); });
  return 0;
}

void State::fill() {
  driver.init = [](unsigned) { return 0; };
  driver.error_string = [](int error, const char** text) {
    *text = error == kOutOfMemory      ? "out of memory"
            : error == kInvalidContext ? "invalid device context"
                                       : "invalid argument";
    return 0;
  };
  driver.device = [](int* device, int ordinal) {
    *device = ordinal;
    return ordinal == 0 ? 0 : kInvalidValue;
  };
  driver.device_attribute = [](int* value, int attribute, int) {
    const FakeCuda::Options& has = the_state->options;
    *value = attribute == cuda::kGpuDirectSupported     ? has.direct
             : attribute == cuda::kDmabufSupported      ? has.dmabuf
             : attribute == cuda::kFlushWritesOptions   ? cuda::kFlushByHost
             : attribute == cuda::kRemoteWritesOrdering ? (has.ordered ? 100 : 0)
                                                        : 0;
    return 0;
  };
  driver.retain_primary = [](void** context, int) {
    const std::lock_guard lock(the_state->mutex);
    ++the_state->contexts;
    *context = the_state;
    return 0;
  };
  driver.release_primary = [](int) {
    const std::lock_guard lock(the_state->mutex);
    --the_state->contexts;
    return 0;
  };
  driver.push_context = [](void* context) {
    if (context != the_state) return kInvalidContext;
    ++contexts_here;
    return 0;
  };
  driver.pop_context = [](void** context) {
    *context = the_state;
    return contexts_here-- > 0 ? 0 : kInvalidContext;
  };
  driver.allocate = [](CudaDriver::Pointer* memory, std::size_t bytes) {
    if (contexts_here == 0) return kInvalidContext;
    const std::lock_guard lock(the_state->mutex);
    if (bytes > the_state->options.memory - the_state->used) return kOutOfMemory;
    the_state->used += bytes;
    std::vector<std::byte> fresh(bytes, kPoison);
    const auto at = reinterpret_cast<std::uintptr_t>(fresh.data());
    the_state->memories.emplace(at, std::move(fresh));
    *memory = at + kAway;
    return 0;
  };
  driver.free = [](CudaDriver::Pointer memory) {
    if (contexts_here == 0) return kInvalidContext;
    const std::lock_guard lock(the_state->mutex);
    const auto it = the_state->memories.find(memory - kAway);
    if (it == the_state->memories.end()) return kInvalidValue;
    for (const auto& [handle, stream] : the_state->streams) stream->wait_unless_held();
    std::fill(it->second.begin(), it->second.end(), kPoison);
    the_state->freed.push_back(std::move(it->second));
    the_state->memories.erase(it);
    return 0;
  };
  driver.fill = [](CudaDriver::Pointer memory, unsigned char value, std::size_t bytes,
                   void* stream) {
    if (contexts_here == 0) return kInvalidContext;
    const std::lock_guard lock(the_state->mutex);
    if (!the_state->on_device(memory, bytes)) return kInvalidValue;
    std::byte* const at = FakeCuda::here(std::bit_cast<const void*>(memory));
    stream_of(stream).add([=] { std::memset(at, value, bytes); });
    return 0;
  };
  driver.pin = [](void* memory, std::size_t bytes, unsigned) {
    if (contexts_here == 0) return kInvalidContext;
    const std::lock_guard lock(the_state->mutex);
    if (bytes == 0 || the_state->is_pinned(memory, 1)) return kInvalidValue;
    the_state->pins[reinterpret_cast<std::uintptr_t>(memory)] = bytes;
    return 0;
  };
  driver.unpin = [](void* memory) {
    if (contexts_here == 0) return kInvalidContext;
    const std::lock_guard lock(the_state->mutex);
    return the_state->pins.erase(reinterpret_cast<std::uintptr_t>(memory)) == 1 ? 0 : kInvalidValue;
  };
  driver.to_host = [](void* host, CudaDriver::Pointer device, std::size_t bytes, void* stream) {
    return copy(true, host, device, bytes, stream);
  };
  driver.to_device = [](CudaDriver::Pointer device, const void* host, std::size_t bytes,
                        void* stream) { return copy(false, host, device, bytes, stream); };
  driver.create_stream = [](void** stream, unsigned) {
    if (contexts_here == 0) return kInvalidContext;
    auto made = std::make_unique<Stream>();
    const std::lock_guard lock(the_state->mutex);
    *stream = made.get();
    the_state->streams.emplace(made.get(), std::move(made));
    return 0;
  };
  driver.destroy_stream = [](void* stream) {
    std::unique_ptr<Stream> gone;
    const std::lock_guard lock(the_state->mutex);
    const auto it = the_state->streams.find(stream);
    if (it == the_state->streams.end()) return kInvalidValue;
    gone = std::move(it->second);
    the_state->streams.erase(it);
    return 0;
  };
  driver.create_event = [](void** event, unsigned) {
    auto made = std::make_shared<Event>();
    const std::lock_guard lock(the_state->mutex);
    *event = made.get();
    the_state->events.emplace(made.get(), std::move(made));
    return 0;
  };
  driver.destroy_event = [](void* event) {
    const std::lock_guard lock(the_state->mutex);
    return the_state->events.erase(event) == 1 ? 0 : kInvalidValue;
  };
  driver.record = [](void* event, void* stream) {
    const auto its = event_of(event);
    std::uint64_t number = 0;
    {
      const std::lock_guard lock(its->mutex);
      number = ++its->recorded;
    }
    stream_of(stream).add([its, number] {
      const std::lock_guard lock(its->mutex);
      its->done = number;
      its->changed.notify_all();
    });
    return 0;
  };
  driver.stream_waits = [](void* stream, void* event, unsigned) {
    const auto its = event_of(event);
    std::uint64_t number = 0;
    {
      const std::lock_guard lock(its->mutex);
      number = its->recorded;
    }
    stream_of(stream).add([its, number] {
      std::unique_lock lock(its->mutex);
      its->changed.wait(lock, [&] { return its->done >= number; });
    });
    return 0;
  };
  driver.synchronize = [](void* stream) {
    stream_of(stream).wait();
    return 0;
  };
  driver.call_host = [](void* stream, void (*function)(void*), void* argument) {
    if (contexts_here == 0) return kInvalidContext;
    stream_of(stream).add([=] { function(argument); });
    return 0;
  };
  driver.set_pointer_attribute = [](const void* value, int attribute, CudaDriver::Pointer memory) {
    const std::lock_guard lock(the_state->mutex);
    if (attribute != cuda::kSyncMemops || *static_cast<const unsigned*>(value) != 1 ||
        !the_state->on_device(memory, 1))
      return kInvalidValue;
    ++the_state->nics;
    return 0;
  };
  driver.range_handle = [](void* handle, CudaDriver::Pointer memory, std::size_t bytes, int type,
                           unsigned long long) {
    const std::lock_guard lock(the_state->mutex);
    if (!the_state->options.dmabuf) return kNotSupported;
    if (type != cuda::kDmabufHandle || bytes % 4096 != 0 || !the_state->on_device(memory, bytes))
      return kInvalidValue;
    *static_cast<int*>(handle) = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return 0;
  };
  driver.flush_remote_writes = [](int target, int scope) {
    if (contexts_here == 0 || target != cuda::kFlushCurrentContext || scope != cuda::kFlushToOwner)
      return kInvalidContext;
    const std::lock_guard lock(the_state->mutex);
    ++the_state->flushes;
    return 0;
  };
}

std::size_t number(std::size_t State::*which) {
  const std::lock_guard lock(the_state->mutex);
  return the_state->*which;
}

}  // namespace

FakeCuda::FakeCuda(const Options& options) {
  REQUIRE(the_state == nullptr);
  the_state = new State(options);
}

FakeCuda::~FakeCuda() {
  CHECK(the_state->memories.empty());
  CHECK(the_state->pins.empty());
  CHECK(the_state->events.empty());
  CHECK(the_state->contexts == 0);
  CHECK(the_state->streams.empty());
  delete std::exchange(the_state, nullptr);
}

const CudaDriver& FakeCuda::driver() const { return the_state->driver; }

void* FakeCuda::make_stream() {
  auto made = std::make_unique<Stream>();
  const std::lock_guard lock(the_state->mutex);
  void* const stream = made.get();
  the_state->streams.emplace(stream, std::move(made));
  return stream;
}
void FakeCuda::destroy_stream(void* stream) { the_state->driver.destroy_stream(stream); }
void FakeCuda::run_on(void* stream, std::function<void()> work) {
  stream_of(stream).add(std::move(work));
}
void FakeCuda::wait_for(void* stream) { stream_of(stream).wait(); }

std::byte* FakeCuda::allocate(std::size_t bytes) {
  the_state->driver.push_context(the_state);
  CudaDriver::Pointer memory = 0;
  REQUIRE(the_state->driver.allocate(&memory, std::max<std::size_t>(bytes, 1)) == 0);
  void* context = nullptr;
  the_state->driver.pop_context(&context);
  return std::bit_cast<std::byte*>(memory);
}
void FakeCuda::free(void* device) {
  the_state->driver.push_context(the_state);
  the_state->driver.free(reinterpret_cast<CudaDriver::Pointer>(device));
  void* context = nullptr;
  the_state->driver.pop_context(&context);
}

std::byte* FakeCuda::here(const void* device) {
  return std::bit_cast<std::byte*>(std::bit_cast<std::uintptr_t>(device) - kAway);
}
std::byte* FakeCuda::away(const void* host) {
  return std::bit_cast<std::byte*>(std::bit_cast<std::uintptr_t>(host) + kAway);
}

void FakeCuda::hold(void* stream) {
  Stream& its = stream_of(stream);
  const std::lock_guard lock(its.mutex);
  its.held = true;
}
void FakeCuda::release(void* stream) {
  Stream& its = stream_of(stream);
  const std::lock_guard lock(its.mutex);
  its.held = false;
  its.changed.notify_all();
}

std::size_t FakeCuda::copied_out() const { return number(&State::out); }
std::size_t FakeCuda::copied_in() const { return number(&State::in); }
std::size_t FakeCuda::flushes() const { return number(&State::flushes); }
std::size_t FakeCuda::open_to_nics() const { return number(&State::nics); }
std::size_t FakeCuda::allocated() const {
  const std::lock_guard lock(the_state->mutex);
  return the_state->memories.size();
}
std::size_t FakeCuda::pinned() const {
  const std::lock_guard lock(the_state->mutex);
  return the_state->pins.size();
}

}  // namespace leeway::transport::testing
