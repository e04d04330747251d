// A CUDA driver without a GPU. Its device memory is the host's at addresses where nothing is mapped
// (a plain access to it is a crash), full of 0xA5 when it is new and when it is freed. Streams are
// threads, so what a program does not wait for has not happened yet; copies want pinned memory of
// the host, device memory that was allocated, and a current context, else they fail.
//
// One a process: the driver's functions know no object. Tests make a FakeCuda, which resets it.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "transport/cuda_driver.h"

namespace leeway::transport::testing {

class FakeCuda {
 public:
  struct Options {
    bool direct = true, dmabuf = true;
    bool ordered = true;            // remote writes need no flush
    std::size_t memory = SIZE_MAX;  // bytes that the device has
  };
  explicit FakeCuda(const Options& options);
  FakeCuda() : FakeCuda(Options{}) {}
  // Fails the test when something was not given back.
  ~FakeCuda();
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;

  const CudaDriver& driver() const;

  // A stream of the program's, as the run-time library would make it.
  void* make_stream();
  void destroy_stream(void* stream);
  // A kernel.
  void run_on(void* stream, std::function<void()> work);
  void wait_for(void* stream);

  // Memory as the run-time library gives it to a program.
  static std::byte* allocate(std::size_t bytes);
  static void free(void* device);

  // What the host sees of device memory, as a kernel does.
  static std::byte* here(const void* device);
  static std::byte* away(const void* host);

  // The stream does nothing further until release().
  void hold(void* stream);
  void release(void* stream);

  std::size_t copied_out() const;  // bytes
  std::size_t copied_in() const;
  std::size_t flushes() const;
  std::size_t allocated() const;  // memories
  std::size_t pinned() const;
  std::size_t open_to_nics() const;
};

}  // namespace leeway::transport::testing
