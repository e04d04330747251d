#include "transport/random_number.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include "common/result.h"

namespace leeway::transport {

std::uint64_t random_number() {
  std::uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number)
    throw ConfigError(fmt::format("getrandom: {}", std::strerror(errno)));
  return number;
}

}  // namespace leeway::transport
