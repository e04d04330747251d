// A fiber: a stack of its own on which a function runs until it ends or suspends itself.
//
// Called from one thread at a time; fibers do not move between threads. A fiber is reused: after
// its function ended it can start another. One that is destroyed or abandoned while suspended does
// not unwind its stack. Boost.Context switches; the sanitizers are told of every switch.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>

namespace leeway::kernels::emulation {

class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next resume() starts `body`. Not while one is suspended.
  void start(const std::function<void()>* body);
  // Runs until the body suspends or ends; rethrows what the body threw.
  void resume();
  bool ended() const noexcept { return body_ == nullptr; }
  // From within the body: back to who resumed.
  void suspend();

 private:
  struct Switch;  // the library's and the sanitizers' handles
  void run() noexcept;

  const std::function<void()>* body_ = nullptr;
  std::exception_ptr failure_;
  std::unique_ptr<Switch> switch_;
};

}  // namespace leeway::kernels::emulation
