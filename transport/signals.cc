#include "transport/signals.h"

#include <dlfcn.h>

#include <cstring>

namespace leeway::transport {
namespace {

constexpr std::array kSignals = {SIGINT, SIGTERM, SIGSEGV, SIGBUS, SIGILL, SIGABRT};

bool of_a_fabric_library(const struct sigaction& action) {
  // SIG_DFL and SIG_IGN are no addresses of code.
  if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) return false;
  Dl_info where{};
  if (dladdr(reinterpret_cast<void*>(action.sa_handler), &where) == 0 || where.dli_fname == nullptr)
    return false;
  return std::strstr(where.dli_fname, "libinfinipath") != nullptr ||
         std::strstr(where.dli_fname, "libpsm") != nullptr ||
         std::strstr(where.dli_fname, "libfabric") != nullptr;
}

[[maybe_unused]] const bool kTakenBack = [] {
  take_back_signals();
  return true;
}();

}  // namespace

void take_back_signals() noexcept {
  for (const int number : kSignals) {
    struct sigaction action {};
    if (sigaction(number, nullptr, &action) != 0 || !of_a_fabric_library(action)) continue;
    std::memset(&action, 0, sizeof action);
    action.sa_handler = SIG_DFL;
    sigaction(number, &action, nullptr);
  }
}

KeepSignals::KeepSignals() noexcept {
  take_back_signals();
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], nullptr, &saved_[i]);
}

KeepSignals::~KeepSignals() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &saved_[i], nullptr);
}

}  // namespace leeway::transport
