// HOST:PORT as people write it; [::1]:7000 for IPv6.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/result.h"

namespace leeway::scheduler {

struct HostPort {
  std::string host;
  std::uint16_t port = 0;

  std::string text() const;
};

// Port 0 is for those who listen: the system chooses. The error names what was wrong.
Result<HostPort> parse_host_port(std::string_view text);

}  // namespace leeway::scheduler
