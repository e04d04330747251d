// The faults that a user asked this worker to have (common/inject.h). A plain value.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "common/ids.h"
#include "common/inject.h"
#include "common/result.h"

namespace leeway::worker {

class OwnFaults {
 public:
  // Those of `text` that name worker `rank`.
  static Result<OwnFaults> parse(std::string_view text, std::uint32_t rank);

  // How many times as long a step shall take.
  double slowdown() const noexcept;
  // Whether a fault of this kind is due at the step.
  bool due(Injection::Kind kind, Clock step) const noexcept;

 private:
  std::vector<Injection> mine_;
};

}  // namespace leeway::worker
