// Signals belong to the program, not to the libraries that it links.
#pragma once

#include <array>
#include <csignal>

namespace leeway::transport {

// libfabric's shm provider, and libinfinipath, which Debian's libfabric links for a NIC that nobody
// has any more, catch SIGINT, SIGTERM, SIGSEGV and the like, the latter before main() runs: a
// program that expects to die of SIGTERM prints a backtrace instead. Gives back to the default
// action every signal whose handler lies in one of these libraries. Runs by itself before main() in
// every program that links an endpoint (shared libraries start before the program's own objects).
void take_back_signals() noexcept;

// Restores the signals' actions as they were when it was made. Around the first use of libfabric.
class KeepSignals {
 public:
  KeepSignals() noexcept;
  ~KeepSignals();
  KeepSignals(const KeepSignals&) = delete;
  KeepSignals& operator=(const KeepSignals&) = delete;

 private:
  std::array<struct sigaction, 6> saved_{};
};

}  // namespace leeway::transport
