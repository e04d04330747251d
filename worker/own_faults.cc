#include "worker/own_faults.h"

#include <algorithm>

namespace leeway::worker {

Result<OwnFaults> OwnFaults::parse(std::string_view text, std::uint32_t rank) {
  auto all = parse_injections(text);
  if (!all) return tl::unexpected(all.error());
  OwnFaults own;
  std::copy_if(all->begin(), all->end(), std::back_inserter(own.mine_),
               [rank](const Injection& i) { return !i.server && i.index == rank; });
  return own;
}

double OwnFaults::slowdown() const noexcept {
  double factor = 1;
  for (const Injection& i : mine_)
    if (i.kind == Injection::Kind::kSlow) factor = std::max(factor, i.factor);
  return factor;
}

bool OwnFaults::due(Injection::Kind kind, Clock step) const noexcept {
  return std::any_of(mine_.begin(), mine_.end(), [&](const Injection& i) {
    return i.kind == kind && i.at_step == step.value();
  });
}

}  // namespace leeway::worker
