#include "kernels/emulation/fiber.h"

#include <boost/context/detail/fcontext.hpp>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace leeway::kernels::emulation {
namespace context = boost::context::detail;

namespace {
// Kernels keep little on the stack; a sanitizer's red zones multiply it.
constexpr std::size_t kStackBytes = std::size_t{128} << 10;
}  // namespace

struct Fiber::Switch {
  // Not initialised on purpose: only what is touched becomes memory.
  std::unique_ptr<std::byte[]> stack{new std::byte[kStackBytes]};
  context::fcontext_t fiber = nullptr;
  context::fcontext_t resumer = nullptr;
#if defined(__SANITIZE_ADDRESS__)
  const void* resumer_stack = nullptr;
  std::size_t resumer_stack_bytes = 0;
  void* resumer_fake = nullptr;
  void* fiber_fake = nullptr;
#endif
#if defined(__SANITIZE_THREAD__)
  void* tsan_fiber = __tsan_create_fiber(0);
  void* tsan_resumer = nullptr;
  ~Switch() { __tsan_destroy_fiber(tsan_fiber); }
#endif

  void enter(Fiber* self) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&resumer_fake, stack.get(), kStackBytes);
#endif
#if defined(__SANITIZE_THREAD__)
    tsan_resumer = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(tsan_fiber, 0);
#endif
    fiber = context::jump_fcontext(fiber, self).fctx;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(resumer_fake, nullptr, nullptr);
#endif
  }

  void leave() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&fiber_fake, resumer_stack, resumer_stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(tsan_resumer, 0);
#endif
    entered(context::jump_fcontext(resumer, nullptr).fctx);
  }

  void entered(context::fcontext_t from) {
    resumer = from;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fiber_fake, &resumer_stack, &resumer_stack_bytes);
#endif
  }

  static void entry(context::transfer_t from) {
    auto* self = static_cast<Fiber*>(from.data);
    self->switch_->entered(from.fctx);
    self->run();
  }
};

Fiber::Fiber() : switch_(std::make_unique<Switch>()) {
  switch_->fiber =
      context::make_fcontext(switch_->stack.get() + kStackBytes, kStackBytes, &Switch::entry);
}

Fiber::~Fiber() = default;

void Fiber::start(const std::function<void()>* body) { body_ = body; }

void Fiber::resume() {
  switch_->enter(this);
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Fiber::suspend() { switch_->leave(); }

// Never returns: an ended fiber waits here for its next body.
void Fiber::run() noexcept {
  for (;;) {
    try {
      (*body_)();
    } catch (...) {
      failure_ = std::current_exception();
    }
    body_ = nullptr;
    switch_->leave();
  }
}

}  // namespace leeway::kernels::emulation
