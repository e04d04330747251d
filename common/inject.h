// Faults that a user injects to see what a job does: `--inject slow:worker=2,factor=5`. Parsed by
// the launcher (to refuse nonsense early), obeyed by the worker or server that it names.
//
//   slow:worker=W,factor=F              W's steps take F times as long
//   kill:worker=W,at_step=N             SIGKILL between the pushes of step N
//   kill:server=S,at_step=N             SIGKILL when S has applied clock N
//   pause:worker=W,at_step=N,seconds=T  SIGSTOP before step N, resumed by the launcher after T
//   nonfinite:worker=W,at_step=N        one element of the first gradient of step N is infinite
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"

namespace leeway {

struct Injection {
  enum class Kind { kSlow, kKill, kPause, kNonfinite };
  Kind kind = Kind::kSlow;
  bool server = false;  // else a worker
  std::uint32_t index = 0;
  std::uint64_t at_step = 0;
  double factor = 1;
  double seconds = 0;
};

Result<Injection> parse_injection(std::string_view text);
// Several, separated by ';', as the environment variable LEEWAY_INJECT carries them.
Result<std::vector<Injection>> parse_injections(std::string_view text);

}  // namespace leeway
